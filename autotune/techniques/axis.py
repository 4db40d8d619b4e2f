"""What a technique declares of itself: an axis of the candidate, and of each value all that others must know.

Titles, refusals, `autotune doctor`, the pages of docs/techniques.md and what exports refuse all derive from these
declarations; how a value is applied stands in `worker/techniques/`, in a file of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from autotune.candidate import Candidate, DeviceKind, choices

if TYPE_CHECKING:
    from autotune.site import MachineFacts
    from autotune.specs import DeviceFacts, ModelFacts, ModelSpec


@dataclass(frozen=True)
class Context:
    """What a candidate is to run in. What is None is not known, or does not matter, and is not judged."""

    accumulation_steps: int = 1
    """Micro-steps for each optimizer step."""
    world_size: int | None = None
    """Ranks that train together, as many in each of `nodes` machines."""
    nodes: int = 1
    kind: DeviceKind | None = None
    """Whose kernels run: a processor's, or those of CUDA."""
    device: DeviceFacts | None = None
    """The device, which need not be on this machine."""
    model: ModelFacts | None = None
    """What the model turned out to be when it was built."""
    source: ModelSpec | None = None
    """Where the model comes from."""
    with_lengths: bool | None = None
    """Whether the lengths of the dataset's sequences are known (--lengths)."""
    machine: MachineFacts | None = None
    """The machine that it is to train on, where packages and a compiler have to be installed."""


CheckFunction = Callable[[Candidate, Context], str | None]
"""Returns why a candidate cannot run in a context, or None."""


@dataclass(frozen=True)
class Rule:
    """Values of other axes that a value does not go with. What a rule does not name, it does not refuse."""

    forbid: Mapping[str, Collection[Any]]
    """By axis; any of them breaks the rule."""
    because: str
    """The reason, true of everything that is forbidden: whoever asks for it reads it."""
    where: Mapping[str, Collection[Any]] = field(default_factory=dict)
    """The rule holds only where each of these axes has one of these values."""

    def broken_by(self, candidate: Candidate) -> bool:
        """Tell whether a candidate with the value that this rule belongs to breaks it."""
        return bool(self.excluding(candidate))

    def excluding(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the axes of a candidate whose values break this rule together; none where it is kept."""
        if not all(getattr(candidate, axis) in values for axis, values in self.where.items()):
            return ()
        forbidden = [axis for axis, values in self.forbid.items() if getattr(candidate, axis) in values]
        return (*self.where, *forbidden) if forbidden else ()


def all_but(axis: str, *values: Any) -> tuple[Any, ...]:
    """Return every other value of an axis, for rules whose reason holds for whatever else there may come to be."""
    return tuple(choice for choice in choices(axis) if choice not in values)


def listed(names: Collection[str]) -> str:
    """Return names as a sentence has them."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


Changed = Literal["gradients", "products", "optimizer state", "weights", "optimizer", "what trains"]
"""Of what a technique may make another training, the smallest change first: rounding of what passes through, then of
what is kept, then another update rule, then other weights that train."""
CHANGES: tuple[Changed, ...] = get_args(Changed)


@dataclass(frozen=True)
class TrainingChange:
    """By what the training of a value differs from plain bf16 training: mixed precision over fp32 weights, with AdamW.

    Not beyond the order in which kernels add up: that differs by device too.
    """

    of: Changed
    how: str
    """What is learned in another way, in a phrase: `the optimizer's moments are rounded to 8 bits`."""


@dataclass(frozen=True)
class Value:
    """One value of an axis."""

    title: str = ""
    """What it adds to a candidate's title; nothing for defaults."""
    short: str = ""
    """What a command line may say for it."""
    saves: str = ""
    """Memory or time that it saves, as docs/techniques.md says it."""
    costs: str = ""
    avoid: str = ""
    """Where not to use it."""
    rules: tuple[Rule, ...] = ()
    packages: tuple[str, ...] = ()
    """What has to be installed beyond autotune's own dependencies, by the names of PyPI."""
    dtypes: tuple[str, ...] = ()
    """Number types that the device itself has to compute in."""
    slowdown: float = 1.0
    """By what a step's time at the same micro-batch is usually multiplied, where no trace or probe says better. Nothing
    is decided by it but what is traced first."""
    needs_compiler: bool = False
    """Whether torch.compile's own needs have to be met (a C++ compiler, or Triton)."""
    changes_training: TrainingChange | None = None
    """How what is learned differs with it; None where it does not. It is tried only by consent (`consent`)."""
    gpu_only: str = ""
    """Why it trains on a GPU alone; empty where a processor can."""


@dataclass(frozen=True)
class Axis:
    """One field of a candidate, with its values: a closed set, or names and numbers."""

    name: str
    about: str
    """What it says of a candidate, in a phrase without its values: the help of its option."""
    values: Mapping[Any, Value]
    number: Value | None = None
    """What holds of each number of an open axis (candidate.OPEN); None for a closed one."""
    rules: tuple[Rule, ...] = ()
    """Of every value but the default."""
    checks: tuple[CheckFunction, ...] = ()
    """What no rule between axes can say."""
    title: Callable[[Candidate], str] | None = None
    """Gives the part of a candidate's title where other axes change it."""
    not_exported: str = ""
    """Why a library that does not know the technique cannot train as it was measured, told by exports."""
    ordered: bool = True
    """Whether what one value came to tells anything of another; else each has to be tried for itself."""
    beside_passes: bool = False
    """Whether its time is none of the blocks' passes: it is the same however fast these are."""

    def named(self, text: Any) -> Any:
        """Return the value that has a short name, or what is given."""
        return next(
            (name for name, value in self.values.items() if value.short and value.short == text), text
        )

    def declared(self, value: Any) -> Value:
        """Return what is declared of a value."""
        return self.number if self.number is not None and type(value) is int else self.values[value]

    @property
    def default(self) -> Any:
        """The value that changes nothing."""
        return Candidate.model_fields[self.name].default
