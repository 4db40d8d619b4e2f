"""The memory of one step of the winner, as its trace has it, beside what each phase was measured to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.errors import InputError
from autotune.outcome import PhaseReport
from autotune.reporting.drawing import TEXTURES, legend, number, ticks
from autotune.reporting.markup import escaped
from autotune.run.paths import RunPaths
from autotune.search.wording import PHASES
from autotune.timeline.curve import Curve
from autotune.timeline.step_events import Category
from autotune.units import GIB, MIB, format_bytes

LAYERS: dict[Category, tuple[str, str]] = {
    "parameter": ("parameters", "parameters"), "optimizer_state": ("optimizer_state", "optimizer state"),
    "gradient": ("gradients", "gradients"), "buffer": ("buffer", "buffers"),
    "activation": ("activations", "activations"), "workspace": ("workspace", "kernels' workspaces"),
    "temporary": ("other", "temporaries"),
}  # fmt: skip
"""Categories of a timeline from the bottom up: their class and their name."""
_WIDE, _HIGH = 960.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 22.0, 34.0
_Up = Callable[[float], float]


def read_curve(paths: RunPaths) -> Curve | None:
    """Return what the run wrote down of a step of its winner; None where it did not, or it cannot be read."""
    try:
        text = paths.step_memory.read_text(encoding="utf-8")
        found = Curve.model_validate_json(text)
    except (OSError, ValueError, InputError):
        return None
    lengths = {len(values) for values in found.levels.values()}
    return found if len(lengths) == 1 and min(lengths) > 1 else None


def step_figure(curve: Curve, measured: Sequence[PhaseReport]) -> str:
    """Return the picture: the trace's categories stacked, and a line where a probe measured a phase's peak."""
    totals = curve.totals()
    known = {report.phase: report.peak for report in measured}
    top = max([*totals, *(known.get(phase, 0) for _, phase in curve.phases)]) * 1.04
    unit, name = (GIB, "GiB") if top >= GIB else (MIB, "MiB")
    wide, high = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BOTTOM

    def across(index: float) -> float:
        return _LEFT + wide * index / (len(totals) - 1)

    def up(size: float) -> float:
        return _TOP + high * (1 - size / top)

    drawn = []
    for value in ticks(top / unit):
        y = number(up(value * unit))
        drawn.append(f'<path class="tick" d="M{_LEFT:.0f} {y}H{_WIDE - _RIGHT:.0f}"/>')
        drawn.append(f'<text x="{_LEFT - 8:.0f}" y="{y}" dy="4" text-anchor="end">{value:g}</text>')
    drawn.append(f'<text x="4" y="12">{name}</text>')
    base = [0] * len(totals)
    for category, (kind, _) in LAYERS.items():
        if category not in curve.levels:
            continue
        values = curve.levels[category]
        above = [below + value for below, value in zip(base, values, strict=True)]
        outline = _outline([across(index) for index in range(len(totals))], above, base, up)
        drawn.append(f'<path class="s-{kind}" d="{outline}"/>')
        if kind in TEXTURES:
            drawn.append(f'<path fill="url(#t-{kind})" d="{outline}"/>')
        base = above
    ends = [*(start for start, _ in curve.phases[1:]), len(totals) - 1][: len(curve.phases)]
    for (start, phase), end in zip(curve.phases, ends, strict=True):
        x = number(across(start))
        drawn.append(f'<path class="dash" d="M{x} {_TOP:.0f}V{_HIGH - _BOTTOM:.0f}"/>')
        if across(end) - across(start) > 60:
            drawn.append(f'<text x="{x}" dx="5" y="{_HIGH - 14:.0f}">{escaped(PHASES[phase])}</text>')
        if (peak := known.get(phase)) is not None:
            y = number(up(peak))
            drawn.append(f'<path class="measured-peak" d="M{x} {y}H{number(across(end))}"/>')
    names = {kind: text for category, (kind, text) in reversed(LAYERS.items()) if category in curve.levels}
    told = f"{format_bytes(max(totals))} at the most, over {len(curve.phases)} phases"
    return (
        f'<div class="wide" tabindex="0"><svg class="plot curve" viewBox="0 0 {_WIDE:.0f} {_HIGH:.0f}" role="img">'
        f"<title>Memory of one step: {told}</title>{''.join(drawn)}</svg></div>{legend(names)}"
    )  # fmt: skip


def _outline(xs: Sequence[float], above: Sequence[int], below: Sequence[int], up: _Up) -> str:
    """Return the area between two lines as a path, without the points that a straight line goes through."""
    top = _thinned([(x, up(value)) for x, value in zip(xs, above, strict=True)])
    bottom = _thinned([(x, up(value)) for x, value in zip(xs, below, strict=True)])
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in [*top, *reversed(bottom)]) + "Z"


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    kept = [points[0]]
    for before, point, after in zip(points, points[1:], points[2:], strict=False):
        if not (before[1] == point[1] == after[1]):
            kept.append(point)
    return [*kept, points[-1]]
