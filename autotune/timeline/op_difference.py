"""What the passes of one training compute beyond those of another, and a third with as much more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autotune.outcome import Phase
from autotune.timeline.op_counts import Counts, OpCounts, Operators

_Fact = tuple[object, ...]
"""All that a timeline knows of an operator."""
Difference = dict[str, dict[Phase, Counter[_Fact]]]
"""By stretch (`micro`, `single`) and phase: how many more calls there are of what; fewer are negative."""


def difference(less: OpCounts, more: OpCounts) -> Difference | None:
    """Return what the passes of `more` do beyond those of `less`; None where only one knows a single sample."""
    found: Difference = {}
    for name in ("micro", "single"):
        ours, theirs = getattr(less, name), getattr(more, name)
        if ours is None or theirs is None:
            if ours is not theirs:
                return None
            continue
        found[name] = {}
        for phase in {**ours, **theirs}:
            beyond = _facts(more, theirs.get(phase, []))
            beyond.subtract(_facts(less, ours.get(phase, [])))
            found[name][phase] = beyond
    return found


def added(work: OpCounts, more: Difference) -> OpCounts | None:
    """Return operators with more of them in their passes; None where some would run less than never."""
    operators = Operators(**{name: list(values) for name, values in vars(work.operators).items()})
    lists = list(vars(operators).values())
    known = {fact: index for index, fact in enumerate(zip(*lists, strict=True))}

    def number(fact: _Fact) -> int:
        if fact not in known:
            known[fact] = len(known)
            for values, value in zip(lists, fact, strict=True):
                values.append(value)
        return known[fact]

    def changed(name: str) -> dict[Phase, Counts] | None:
        phases: dict[Phase, Counts] | None = getattr(work, name)
        if phases is None:
            return None
        found: dict[Phase, Counts] = {}
        for phase in {**phases, **more.get(name, {})}:
            totals = dict(phases.get(phase, []))
            for fact, count in more.get(name, {}).get(phase, {}).items():
                if count:
                    index = number(fact)
                    totals[index] = totals.get(index, 0) + count
            found[phase] = [(index, count) for index, count in totals.items() if count]
        return found

    micro, single = changed("micro"), changed("single")
    assert micro is not None, "every trace has a micro-step"
    stretches = [micro] if single is None else [micro, single]
    if any(count < 0 for phases in stretches for counts in phases.values() for _, count in counts):
        return None
    return replace(work, operators=operators, micro=micro, single=single)


def _facts(work: OpCounts, counts: Counts) -> Counter[_Fact]:
    lists = list(vars(work.operators).values())
    found: Counter[_Fact] = Counter()
    for index, count in counts:
        found[tuple(values[index] for values in lists)] += count
    return found
