"""The memory of a step as a curve, by what it holds, thinned for drawing."""

from __future__ import annotations

from autotune.outcome import Phase
from autotune.timeline.step_events import CATEGORIES, PLACES, Category
from autotune.timeline.timeline import Timeline
from autotune.validation import Frozen


class Curve(Frozen):
    """Bytes on the device after events of the second optimizer step, when all that ever lives is there."""

    levels: dict[Category, tuple[int, ...]]
    """One list for each category that takes anything, all of equal length; their sum is what is allocated."""
    phases: tuple[tuple[int, Phase], ...]
    """Where a phase begins: (index into the lists, phase)."""

    def totals(self) -> list[int]:
        """Return the sum over all categories."""
        return [sum(point) for point in zip(*self.levels.values(), strict=True)]


def curve(timeline: Timeline, micro_batch: int, accumulating: bool = False, points: int = 1200) -> Curve:
    """Return the curve at a micro-batch, thinned to about so many points.

    Of each stretch of events the one with the largest sum is kept, so that no peak is lost.
    """
    program = timeline.program(micro_batch, accumulating)
    timeline = timeline.of(accumulating)
    sizes = timeline.sizes(micro_batch)
    device = PLACES.index("device")
    second = next(start for start, _, step in program.marks if step == 2)
    stride = max(1, (len(program.events) - second) // points)
    now = [0] * len(CATEGORIES)
    kept: list[list[int]] = []
    phases: list[tuple[int, Phase]] = []
    starts = {start: phase for start, phase, step in program.marks if step == 2}
    best: list[int] | None = None
    for position, event in enumerate(program.events):
        slot = event if event >= 0 else ~event
        if position in starts:
            if best is not None:
                kept.append(best)
                best = None
            phases.append((len(kept), starts[position]))
        if timeline.slots.place[slot] == device:
            now[timeline.slots.category[slot]] += sizes[slot] if event >= 0 else -sizes[slot]
        if position < second:
            continue
        if best is None or sum(now) > sum(best):
            best = list(now)
        if (position - second) % stride == stride - 1:
            kept.append(best)
            best = None
    if best is not None:
        kept.append(best)
    levels = {name: tuple(point[index] for point in kept) for index, name in enumerate(CATEGORIES)}
    return Curve(
        levels={name: values for name, values in levels.items() if any(values)}, phases=tuple(phases)
    )
