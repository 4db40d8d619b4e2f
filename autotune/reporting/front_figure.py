"""The picture of memory against speed: what was measured and what is predicted, each with a mark of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.reporting.drawing import number, ticks
from autotune.reporting.markup import escaped
from autotune.reporting.tradeoffs import Tradeoffs, peak_text, speed_text
from autotune.search.context import SearchContext
from autotune.search.pareto import Point
from autotune.techniques.families import title as title_of
from autotune.units import GIB, MIB, format_count

_NEAR = 2.0
"""Times the largest peak, up to which what may be taken is drawn: beyond, it would press all marks to one side."""
_WIDE, _HIGH = 960.0, 380.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 22.0, 26.0, 48.0
_Up = Callable[[float], float]
TIGHT = "does not leave the headroom"
"""What a mark of its own says of what trained, and cannot be the winner."""


def front_figure(found: Tradeoffs, context: SearchContext) -> str:
    """Return the picture as a part of a page. What is at hand of each mark is its title, and the table beside it."""
    points = [point for point in found.points if point.tokens_per_second is not None]
    largest = max((point.peak for point in points), default=0)
    limit = context.usable if context.usable <= _NEAR * largest else None
    most = 1.06 * max(largest, limit or 0)
    fastest = 1.06 * max((_speed(point) + point.interval for point in points), default=1.0)
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    wide, high = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BOTTOM
    foot = _HIGH - _BOTTOM

    def across(size: float) -> float:
        return _LEFT + wide * size / most

    def up(speed: float) -> float:
        return _TOP + high * (1 - speed / fastest)

    drawn = []
    for value in ticks(fastest):
        y = number(up(value))
        drawn.append(f'<path class="tick" d="M{_LEFT:.0f} {y}H{_WIDE - _RIGHT:.0f}"/>')
        drawn.append(
            f'<text x="{_LEFT - 8:.0f}" y="{y}" dy="4" text-anchor="end">{format_count(value)}</text>'
        )
    for value in ticks(most / unit, 8):
        x = number(across(value * unit))
        drawn.append(f'<path class="tick" d="M{x} {foot:.0f}v5"/>')
        drawn.append(f'<text x="{x}" y="{foot + 19:.0f}" text-anchor="middle">{value:g}</text>')
    drawn.append('<text x="4" y="14">tokens/s at the global batch</text>')
    drawn.append(
        f'<text x="{_WIDE - _RIGHT:.0f}" y="{_HIGH - 8:.0f}" text-anchor="end">peak memory of a device, {name}</text>'
    )
    if limit is not None:
        at = across(limit)
        drawn.append(f'<path class="dash" d="M{number(at)} {_TOP:.0f}V{foot:.0f}"/>')
        drawn.append(
            f'<text x="{number(at - 5)}" y="{_TOP + 10:.0f}" text-anchor="end">what may be taken</text>'
        )
    front = [(across(point.peak), up(_speed(point))) for point in found.front]
    if front:
        first, *others = front
        steps = "".join(f"H{number(x)}V{number(y)}" for x, y in others)
        drawn.append(f'<path class="front" d="M{number(first[0])} {number(first[1])}{steps}"/>')
    for point in sorted(points, key=lambda one: (one.evidence != "predicted", found.is_winner(one))):
        drawn.append(_mark(point, across(point.peak), up, found.is_winner(point)))
    return (
        f'<div class="wide" tabindex="0"><svg class="plot" viewBox="0 0 {_WIDE:.0f} {_HIGH:.0f}" role="img">'
        f"<title>{escaped(_told(points, found))}</title>{''.join(drawn)}</svg></div>{_legend(points)}"
    )


def _mark(point: Point, x: float, up: _Up, winner: bool) -> str:
    y = up(_speed(point))
    bars = ""
    if point.interval:
        low, high = (
            number(up(max(0.0, _speed(point) - point.interval))),
            number(up(_speed(point) + point.interval)),
        )
        kind, left = f"bars {point.evidence}", number(x - 3)
        bars = f'<path class="{kind}" d="M{number(x)} {low}V{high}M{left} {low}h6M{left} {high}h6"/>'
    ring = f'<circle class="mark-winner" cx="{number(x)}" cy="{number(y)}" r="11"/>' if winner else ""
    return f"<g><title>{escaped(_hover(point))}</title>{bars}{_shape(_kind(point), x, y)}{ring}</g>"


def _shape(kind: str, x: float, y: float) -> str:
    """Return a filled circle for what was measured, an open diamond for predictions, a cross for what is too tight."""
    match kind:
        case "predicted":
            return f'<path class="mark-predicted" d="M{number(x)} {number(y - 6)}l6 6-6 6-6-6z"/>'
        case "tight":
            return (
                f'<path class="mark-tight" d="M{number(x - 5)} {number(y - 5)}l10 10M{number(x - 5)} '
                f'{number(y + 5)}l10-10"/>'
            )
        case "replayed":
            return f'<path class="mark-replayed" d="M{number(x - 5)} {number(y - 5)}h10v10h-10z"/>'
        case _:
            return f'<circle class="mark-measured" cx="{number(x)}" cy="{number(y)}" r="5"/>'


def _kind(point: Point) -> str:
    if not point.fits and point.evidence != "predicted":
        return "tight"
    return point.evidence


def _legend(points: Sequence[Point]) -> str:
    """Return what the marks mean, of those that are drawn."""
    names = {
        "measured": "measured", "replayed": "replayed", "predicted": "predicted, not measured", "tight": TIGHT,
    }  # fmt: skip
    shown = [
        (f'<svg aria-hidden="true" viewBox="0 0 18 13">{_shape(kind, 9, 6.5)}</svg>', text)
        for kind, text in names.items()
        if kind in {_kind(point) for point in points}
    ]
    shown.append(
        (
            '<svg aria-hidden="true" viewBox="0 0 18 13"><path class="front" d="M0 9h9V4h9"/></svg>',
            "nothing beats these in both",
        )
    )
    shown.append(
        (
            '<svg aria-hidden="true" viewBox="0 0 18 13"><circle class="mark-winner" cx="9" cy="6.5" r="5"/></svg>',
            "the winner",
        )
    )
    return f'<ul class="legend">{"".join(f"<li>{mark}{escaped(text)}</li>" for mark, text in shown)}</ul>'


def _told(points: Sequence[Point], found: Tradeoffs) -> str:
    return f"Memory against speed of {len(points)} configurations, {len(found.front)} of which nothing beats in both"


def _hover(point: Point) -> str:
    probe = f"probe {point.number}, " if point.number is not None else ""
    return (
        f"{title_of(point.candidate)}, micro-batch {point.candidate.micro_batch}: {peak_text(point)}, "
        f"{speed_text(point)} tokens/s; {probe}{point.evidence}"
    )


def _speed(point: Point) -> float:
    assert point.tokens_per_second is not None
    return point.tokens_per_second
