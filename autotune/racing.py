"""Racing: when a probe has measured long enough to know that it cannot win, and what it then says. Pure.

To stop measuring what is surely worse is what Maron and Moore (Hoeffding Races, 1994) call racing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import Field

from autotune.bounds import Duration
from autotune.confidence import t_quantile
from autotune.validation import Frozen

Share = Annotated[float, Field(ge=0)]

WARM_UP = 0.25
"""A step of the warm-up takes at most so much longer, as a share, than the fastest of those behind it: on a processor
99% of 624 did (benchmarks/data/grids: steps of 0.2 to 3 s, median 0.02, 0.58 at most)."""


class Incumbent(Frozen):
    """The best of a search so far, as far as it is sure: what a probe has to beat to be worth measuring on."""

    seconds: Annotated[float, Field(gt=0)]
    """Upper end of the 95% interval of its global step, drift between measurements included."""
    deviation: Share
    """Standard deviation of one of its steps from the next, as a share of the step."""
    degrees: Annotated[int, Field(ge=1)]
    """Degrees of freedom that this is known with."""
    drift: Share
    """Half-width of the 95% interval that drift adds to any measurement of the run, as a share."""


class SpeedBound(Frozen):
    """What a probe says of speed that ended when it could not win any more: it is no faster than this. Never a speed.

    Its memory is as sure as any probe's: a whole step followed the one that made the optimizer's state.
    """

    seconds: Annotated[float, Field(gt=0)]
    """A global step takes at least so long: lower end of the 95% interval, drift included."""
    fastest: Annotated[float, Field(gt=0)]
    """Of a global step, composed of the fastest parts that were seen; where none but the warm-up's were, by how much
    these may be slower is taken off."""
    share: Share
    """Half-width of the 95% interval of one step, as a share, without drift."""
    beaten_by: Duration
    """The incumbent's, which it was compared with."""
    steps: Annotated[int, Field(ge=0)]
    """Optimizer steps that were measured; none where the warm-up's said enough."""

    def at_least(self, drift: float) -> float:
        """Return the seconds that a global step takes at least, where measurements drift by this share."""
        return self.fastest / (1 + math.hypot(self.share, drift))


class StepSeconds(Protocol):
    """The parts of one measured step."""

    @property
    def micro_step(self) -> float | None:
        """Mean seconds of all micro-steps but the last; None where the last is the only one."""
        ...

    @property
    def last_micro_step(self) -> float:
        """Seconds of the last."""
        ...

    @property
    def optimizer_step(self) -> float:
        """Seconds of the optimizer's part."""
        ...


def speed_bound(
    steps: Sequence[StepSeconds], accumulation_steps: int, incumbent: Incumbent
) -> SpeedBound | None:
    """Return what a global step of these parts takes at least; None before two micro-steps were measured.

    Student's interval (NIST/SEMATECH e-Handbook, 1.3.5.2) of a single step, about a step composed of the fastest
    parts seen: more steps make it no narrower, and one that something else held up makes it no larger. A few steps tell
    little of how much they vary (t is 12.7 for two), so their deviation is pooled with the incumbent's (the same,
    1.3.5.3), which assumes that steps of one run vary by about the same share of their time. Drift is added, as to
    every measurement that is compared with another. No step of the warm-up counts: they are slower than those to come
    (`warm_up_bound`).
    """
    fastest = _fastest(steps, accumulation_steps)
    if fastest is None:
        return None
    more = accumulation_steps - 1
    rest = [step.last_micro_step + step.optimizer_step for step in steps]
    whole = [
        more * (step.last_micro_step if step.micro_step is None else step.micro_step) + end
        for step, end in zip(steps, rest, strict=True)
    ]
    own = statistics.stdev(whole) / statistics.fmean(whole) if len(whole) > 1 else 0.0
    degrees = incumbent.degrees + len(whole) - 1
    pooled = math.sqrt((incumbent.degrees * incumbent.deviation**2 + (len(whole) - 1) * own**2) / degrees)
    return _bound(incumbent, fastest, t_quantile(degrees) * pooled, len(whole))


def warm_up_bound(
    steps: Sequence[StepSeconds], accumulation_steps: int, incumbent: Incumbent
) -> SpeedBound | None:
    """Return what a global step takes at least as far as the steps of its warm-up tell; None for too few of them.

    They may be slower than those to come by WARM_UP, and vary as the incumbent's do (`speed_bound`): how much they
    differ from each other tells nothing of it, since the first makes the optimizer's state.
    """
    fastest = _fastest(steps, accumulation_steps)
    if fastest is None:
        return None
    share = t_quantile(incumbent.degrees) * incumbent.deviation
    return _bound(incumbent, fastest / (1 + WARM_UP), share, measured=0)


def _fastest(steps: Sequence[StepSeconds], accumulation_steps: int) -> float | None:
    """Return the seconds of a global step of the fastest parts among these; None for less than two micro-steps."""
    others = [step.micro_step for step in steps if step.micro_step is not None]
    last = [step.last_micro_step for step in steps]
    if len(others) + len(last) < 2:
        return None
    micro = min([*others, *last])
    # Of one step alone nobody can tell whether its last micro-step took longer for a reason of its own.
    end = min(last) if len(last) > 1 else micro
    return (accumulation_steps - 1) * micro + end + min(step.optimizer_step for step in steps)


def _bound(incumbent: Incumbent, fastest: float, share: float, measured: int) -> SpeedBound:
    return SpeedBound(
        seconds=fastest / (1 + math.hypot(share, incumbent.drift)), fastest=fastest, share=share,
        beaten_by=incumbent.seconds, steps=measured,
    )  # fmt: skip


def cannot_win(bound: SpeedBound | None) -> bool:
    """Tell whether a bound leaves out that its candidate is as fast as the incumbent."""
    return bound is not None and bound.seconds > bound.beaten_by
