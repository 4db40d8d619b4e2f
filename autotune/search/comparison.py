"""Which of two configurations is better by a run's objective, beyond what the intervals of both explain. Pure.

What was measured and what is predicted compare alike, so that a strategy may ask the same of what it has not probed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from autotune.objective import Objective
from autotune.units import MIB

MARGIN = 0.02
"""Share of a global step's time: a difference below it is worth no further measurement."""
CPU_NOISE = 2 * MIB
"""Bytes by which a rank's peak differs from launch to launch on the cpu device, where the kernel counts what is no
tensor too: peaks as near as that are the same, and a proof's may be off by as much. Twice the most that ten launches of
one training were apart (0.98 MiB of 6 where blocks were compiled, else 0.28 at most: `benchmarks/peak_noise.py`)."""


@dataclass(frozen=True)
class Joules:
    """The energy of a whole global step on all devices."""

    mean: float
    half_width: float
    """Of its 95% interval."""


@dataclass(frozen=True)
class Paired:
    """How two configurations compared that were measured in alternation."""

    log_speedup: float
    """Logarithm of the other's time over the one's: about the share by which the one is faster."""
    half_width: float
    """Of its 95% interval."""
    rounds: int
    """In which both were measured."""

    @property
    def is_equal(self) -> bool:
        """Tell whether they are as fast as each other, for certain and within MARGIN."""
        return abs(self.log_speedup) + self.half_width <= MARGIN


class Rated(Protocol):
    """What is known of a configuration at the target global batch."""

    @property
    def seconds(self) -> float:
        """Of a whole global step."""
        ...

    @property
    def half_width(self) -> float:
        """Of the 95% interval of `seconds`."""
        ...

    @property
    def peak(self) -> int:
        """Bytes that count against the budget."""
        ...

    @property
    def joules(self) -> Joules | None:
        """Of a whole global step; None where they are not known."""
        ...

    @property
    def measured(self) -> bool:
        """Whether a probe said so, and not the models of memory and speed."""
        ...

    def against(self, other: object) -> Paired | None:
        """Return how it compared with another in alternation; None where they were not measured so."""
        ...


_Rated = TypeVar("_Rated", bound=Rated)


def apart(one: Rated, other: Rated) -> float:
    """Return the half-width (seconds) of the 95% interval of the difference; 0 unless both were measured.

    What was measured in alternation has the interval of the rounds.
    Predictions come from one formula, so the same candidates always compare alike: what is predicted decides.
    """
    if (paired := one.against(other)) is not None:
        return one.seconds * paired.half_width
    return math.hypot(one.half_width, other.half_width) if one.measured and other.measured else 0.0


def lead(one: Rated, other: Rated) -> float:
    """Return the seconds by which the first is faster: by the rounds that both were measured in, if there are any."""
    if (paired := one.against(other)) is not None:
        return one.seconds * paired.log_speedup
    return other.seconds - one.seconds


def is_faster(one: Rated, other: Rated) -> bool:
    """Tell whether the first is faster by more than both intervals explain."""
    return lead(one, other) > apart(one, other)


def is_better(one: Rated, other: Rated, objective: Objective) -> bool:
    """Tell whether the first is known to be better by the objective, both being fast enough for it.

    Every configuration of a run has the same devices, so what a token costs is the time of a step times a constant:
    cost compares as speed. By energy, what is known is better than what is not.
    """
    match objective.name:
        case "memory":
            return other.peak - one.peak > CPU_NOISE
        case "energy" if one.joules is None or other.joules is None:
            return one.joules is not None
        case "energy":
            assert one.joules is not None
            assert other.joules is not None
            noise = math.hypot(one.joules.half_width, other.joules.half_width)
            return other.joules.mean - one.joules.mean > noise
        case _:
            return is_faster(one, other)


def speed_share(one: Rated, rated: Sequence[Rated]) -> tuple[float, float]:
    """Return the speed of one as a share of the fastest one's, and the half-width of that share's 95% interval.

    The fastest is the one whose measured (or predicted) step takes least time. Of itself the share is 1, for certain.
    """
    fastest = min(rated, key=lambda other: other.seconds)
    share = fastest.seconds / one.seconds
    if fastest is one:
        return 1.0, 0.0
    noise = [other.half_width / other.seconds if other.measured else 0.0 for other in (one, fastest)]
    return share, share * math.hypot(*noise)


def fast_enough(rated: Sequence[_Rated], objective: Objective) -> list[_Rated]:
    """Return those among which the objective chooses, in their order.

    All, but by memory those alone whose speed as it stands reaches the share that was asked for of the fastest one's.
    What the interval leaves open is said (`speed_share`) and not assumed: neither that a slower one may be as
    fast, nor that none is sure to be.
    """
    if objective.name != "memory" or not rated:
        return list(rated)
    limit = min(entry.seconds for entry in rated) / objective.speed_share
    return [entry for entry in rated if entry.seconds <= limit * (1 + 1e-9)]


def undominated(rated: Sequence[_Rated], objective: Objective) -> list[_Rated]:
    """Return those that no other is known to be better than, in their order.

    Pairs that were measured in alternation need not agree with each other: where each has one that is better, it is the
    one whose step takes least time.
    """
    # Most are beaten by one of the best, which are asked first: by all, a thousand would be a million comparisons.
    likely = sorted(rated, key=lambda entry: rough(entry, objective))
    found = [entry for entry in rated if not any(is_better(other, entry, objective) for other in likely)]
    return found or ([min(rated, key=lambda entry: entry.seconds)] if rated else [])


def rough(entry: Rated, objective: Objective) -> float:
    """Return what an objective makes small, intervals aside: but for alternation, what is better has less of it."""
    match objective.name:
        case "memory":
            return entry.peak
        case "energy":
            return entry.joules.mean if entry.joules is not None else math.inf
        case _:
            return entry.seconds
