"""What counts as a regression: the thresholds of a sweep."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from autotune.bounds import HelpName
from autotune.options import Options
from autotune.results.moment import Moment


def _read_share(value: Any) -> Any:
    """Take a share also as text: `1%`."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return value
    return value


Share = Annotated[float, BeforeValidator(_read_share), Field(ge=0, lt=1), HelpName("SHARE")]


class Thresholds(Options):
    """Which differences between nights are told as regressions. Shares may be written as `1%`."""

    subject: ClassVar[str] = "What counts"

    nights: Annotated[int, Field(ge=1, le=365)] = 7
    """Good nights of a cell that tonight is compared with, at most: with the last, and with the median of all."""
    false_alarms: Annotated[float, BeforeValidator(_read_share), Field(gt=0, lt=0.5), HelpName("SHARE")] = (
        0.001
    )
    """Chance that a night in which nothing changed is told to be slower, in any of its cells."""
    throughput: Share = 0.02
    """Fall of tokens per second that is worth telling, however sure it is."""
    peak: Share = 0.01
    """Growth of a candidate's peak that is a regression, beyond what nights differ by."""
    winner: Literal["tell", "fail"] = "tell"
    """Whether it is a regression, or only told, that the winner is neither the last good night's nor one that could not
    be told from it."""
    since: Moment | None = None
    """Nights before this day or moment are not compared with: what came then is the new normal."""
