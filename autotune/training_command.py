"""A training command of the user's own, with the axes of a candidate that it can express: plain data."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from autotune.validation import Frozen

NUMBERS: dict[str, str] = {
    "micro_batch": "samples that each device takes at a time",
    "accumulation": "micro-steps for each optimizer step",
    "total_accumulation": "micro-steps of all devices together for each optimizer step",
    "global_batch": "samples of an optimizer step over all devices",
    "gpus": "devices on each node",
    "nodes": "machines",
    "seq_len": "tokens of a sequence (--seq-len)",
    "seed": "the run's seed",
    "output": "a scratch folder for whatever the command writes",
}
"""What a command can be told beside the axes of a candidate, by the names of its placeholders."""


class WrittenValue(Frozen):
    """What one value of an axis adds to a command."""

    text: str = ""
    """What stands in place of the axis' placeholder."""
    args: tuple[str, ...] = ()
    """Arguments that are added."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables that are set."""
    keys: dict[str, Any] = Field(default_factory=dict)
    """Keys of configuration files that are set, each written `FILE:key.of.sections`."""


class Carrier(Frozen):
    """What carries a number (`NUMBERS`) to a command that has no placeholder for it. Exactly one of the three."""

    flag: str | None = None
    """An argument; one that ends in `=` takes the number in the same word."""
    env: str | None = None
    """An environment variable."""
    key: str | None = None
    """A key of a configuration file, written `FILE:key.of.sections`."""


class TrainingCommand(Frozen):
    """How a user starts a training, and what of it a search may change. Nothing of it ever goes through a shell."""

    words: Annotated[tuple[str, ...], Field(min_length=1)]
    """The argument vector with its placeholders: `{micro_batch}`, `{checkpointing:--gc}`."""
    folder: str
    """Where it runs, and where relative names in it start."""
    axes: dict[str, dict[str, WrittenValue]] = Field(default_factory=dict)
    """By axis and value (as text) what is written, in the order of preference; other axes stay as the user has them."""
    numbers: dict[str, Carrier] = Field(default_factory=dict)
    """What carries numbers that have no placeholder."""
    code: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file that the command names, as it was when the run was asked for."""
    evaluation: tuple[str, ...] = ()
    """A second command of the same kind, which evaluates and saves as training does; a proof runs it too."""


class TrainingCall(Frozen):
    """The winner as it is started: an argument vector, which needs no shell."""

    argv: tuple[str, ...]
    folder: str
    """Where it runs."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables that carry axes."""
    keys: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By configuration file, the keys that are to be set in it."""
