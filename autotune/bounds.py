"""How large a number may be that somebody writes: each with its reason, and refused before any work begins.

A number beyond these describes no training that there is. Without them it ends in an overflow of somebody else's code,
in all of the memory, or in a loop without an end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from autotune.printable import quoted


def at_most(most: float, why: str) -> Callable[[Any], Any]:
    """Return a check that refuses a number above `most`, with the reason."""

    def check(value: Any) -> Any:
        if value > most:
            raise ValueError(f"{quoted(value)} is more than {most:,}, {why}")
        return value

    return check


@dataclass(frozen=True)
class HelpName:
    """Part of a type: what help calls its values."""

    name: str


@dataclass(frozen=True)
class Unit:
    """Part of a type: what its values count."""

    name: str


MOST_RANKS = 16_384
"""Devices of a run together."""

MOST_SAMPLES = 2**17
"""Samples of a micro-batch."""

MicroBatch = Annotated[
    int,
    Field(ge=1),
    AfterValidator(at_most(MOST_SAMPLES, "and no device holds the activations of so many samples")),
]
"""Samples that one device takes at a time."""
SeqLen = Annotated[
    int, Field(ge=1), AfterValidator(at_most(2**24, "and the longest context of a model is 10 million"))
]
"""Tokens of a sequence or row."""
MOST_BLOCKS = 10_000
"""Repeated blocks of a model: published ones have up to some hundreds, and the deepest ever trained a thousand."""
Steps = Annotated[
    int, Field(ge=1), AfterValidator(at_most(10**9, "and so many micro-steps make up no optimizer step"))
]
"""Micro-steps of an optimizer step."""
BatchAmount = Annotated[
    int, Field(ge=1), AfterValidator(at_most(10**12, "and no training sees so much in one optimizer step"))
]
"""Tokens or samples of a global batch."""
RankCount = Annotated[
    int, Field(ge=1), AfterValidator(at_most(MOST_RANKS, "more than any published training has had"))
]
"""Devices, or machines."""
Seed = Annotated[
    int, Field(ge=0), AfterValidator(at_most(2**32 - 1, "the largest seed that numpy and transformers take"))
]
Probes = Annotated[int, Field(ge=1), AfterValidator(at_most(100_000, "and no search space has so many"))]
"""Probes of a run."""
Seconds = Annotated[
    float,
    Field(gt=0),
    AfterValidator(at_most(366 * 86400, "the seconds of a year")),
    HelpName("TIME"),
]
"""How long something may take."""
Tolerance = Annotated[
    float,
    Field(gt=0),
    AfterValidator(at_most(1, "which accepts anything: a tolerance is a share, 0.05 is 5%")),
    HelpName("SHARE"),
]
"""A share by which a proof may differ from what was recorded."""
Headroom = Annotated[float, Field(ge=0, lt=0.9), HelpName("SHARE")]
"""Share of a device's memory that stays free."""
SpeedShare = Annotated[float, Field(gt=0, le=1), HelpName("SHARE")]
"""Share of the best speed that is fast enough."""
Price = Annotated[
    float, Field(gt=0), AfterValidator(at_most(10**9, "and no device costs so much an hour in any currency"))
]
"""Of one device for an hour."""
Count = Annotated[int, Field(ge=1), AfterValidator(at_most(10**24, "and there are not so many of anything"))]
Amount = Annotated[int, Field(ge=0, le=10**24)]
"""Bytes, or a count of parameters. Programs write it, hundreds of thousands in a journal: no sentence of its own."""
Bytes = Annotated[Amount, Unit("bytes")]
"""Of memory or of a file: shown to people in GiB too."""
Duration = Annotated[float, Field(ge=0, le=10**10)]
"""Seconds that something took: at most three hundred years. Programs write it, as often."""


def too_many_ranks(gpus: int, nodes: int) -> str | None:
    """Return why there cannot be so many devices on each of so many machines, or None."""
    if gpus * nodes <= MOST_RANKS:
        return None
    return f"--gpus x --nodes: {gpus * nodes:,} is more than {MOST_RANKS:,}, more than any published training has had"
