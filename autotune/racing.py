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

    Its memory is as sure as any probe's: the optimizer's state was there before the last step began.
    """

    seconds: Annotated[float, Field(gt=0)]
    """A global step takes at least so long: lower end of the 95% interval, drift included."""
    fastest: Annotated[float, Field(gt=0)]
    """Of a global step, composed of the fastest parts that were seen."""
    share: Share
    """Half-width of the 95% interval of one step, as a share, without drift."""
    beaten_by: Duration
    """The incumbent's, which it was compared with."""
    steps: Annotated[int, Field(ge=1)]
    """Optimizer steps that were measured."""

    def at_least(self, drift: float) -> float:
        """Return the seconds that a global step takes at least, where measurements drift by this share."""
        return self.fastest / (1 + math.hypot(self.share, drift))


class StepSeconds(Protocol):
    """The parts of one measured step."""

    @property
    def micro_steps(self) -> float | None:
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
    every measurement that is compared with another. No step of the warm-up counts: they are slower than those to come.
    """
    others = [step.micro_steps for step in steps if step.micro_steps is not None]
    last = [step.last_micro_step for step in steps]
    if len(others) + len(last) < 2:
        return None
    more = accumulation_steps - 1
    rest = [step.last_micro_step + step.optimizer_step for step in steps]
    whole = [
        more * (step.last_micro_step if step.micro_steps is None else step.micro_steps) + end
        for step, end in zip(steps, rest, strict=True)
    ]
    micro = min([*others, *last])
    # Of one step alone nobody can tell whether its last micro-step took longer for a reason of its own.
    fastest = more * micro + (min(last) if len(last) > 1 else micro)
    fastest += min(step.optimizer_step for step in steps)
    own = statistics.stdev(whole) / statistics.fmean(whole) if len(whole) > 1 else 0.0
    degrees = incumbent.degrees + len(whole) - 1
    pooled = math.sqrt((incumbent.degrees * incumbent.deviation**2 + (len(whole) - 1) * own**2) / degrees)
    share = t_quantile(degrees) * pooled
    return SpeedBound(
        seconds=fastest / (1 + math.hypot(share, incumbent.drift)), fastest=fastest, share=share,
        beaten_by=incumbent.seconds, steps=len(whole),
    )  # fmt: skip


def cannot_win(bound: SpeedBound | None) -> bool:
    """Tell whether a bound leaves out that its candidate is as fast as the incumbent."""
    return bound is not None and bound.seconds > bound.beaten_by
