"""The memory of a training as a list of allocations and releases, whose sizes are affine in the micro-batch.

A timeline is pure data: a worker traces it once (`autotune.worker.tracing.trace`), and any micro-batch is then priced
here without torch. Its parts are stretches of a training that repeat: building the model, one micro-step (forward
and backward into empty gradients), the first optimizer step (which makes the optimizer's state) and every later
one. A probe is put together from them: build, then twice (micro-steps, optimizer step).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

from autotune.errors import InputError
from autotune.outcome import AttentionKernel, Phase
from autotune.timeline.op_counts import OpCounts
from autotune.timeline.packed import pack, unpack
from autotune.timeline.program import Fullest, Parts, Program, compose
from autotune.timeline.step_events import CATEGORIES, CUDA_BLOCK, PLACES, Category, Place, Slots, StepEvents
from autotune.timeline.traced_blocks import TracedBlocks

FORMAT = 6
"""Raised with every change that older code would misread; cached traces of another format are ignored."""


Unfused = Literal["activation", "attention"]
"""What a model computes in several operators though there is one that keeps less."""


class Holder(NamedTuple):
    """A module and the bytes that it holds at the peak, in one category."""

    module: str
    """Its name; of what no module made: the optimizer, cuBLAS, the building of the model, or the step."""
    category: Category
    bytes: int


def _unnamed(category: Category, phase: Phase) -> str:
    """Return who holds what no module made, at a peak in a phase."""
    if category == "optimizer_state" or phase == "optimizer":
        return "optimizer"
    return "building of the model" if phase == "build" else "step outside the modules"


def _fields(record: Any) -> dict[str, Any]:
    """Return a dataclass's fields by name, without a copy of the long lists in them."""
    return {one.name: getattr(record, one.name) for one in fields(record)}


@dataclass(frozen=True)
class Peak:
    """The most memory that tensors take at one time, where in the step that is, and what takes it."""

    bytes: int
    phase: Phase
    step: int
    """Optimizer step, 1 or 2; 0 for the build."""
    breakdown: dict[Category, int]
    holders: tuple[Holder, ...]
    """Largest first."""


@dataclass(frozen=True)
class Timeline:
    """Allocations and releases of a training, for any micro-batch."""

    device: Literal["cpu", "cuda"]
    """Whose kernels and allocation sizes it follows."""
    slots: Slots
    modules: list[str]
    build: StepEvents
    micro: StepEvents
    """One micro-step at any micro-batch from 2 on (or at `exact`)."""
    single: StepEvents | None
    """One micro-step at micro-batch 1, where copies of dimensions of size 1 vanish."""
    first_update: StepEvents
    update: StepEvents
    evaluation: StepEvents | None = None
    """One forward pass without gradients between two steps, at any micro-batch; None where it was not traced."""
    work: OpCounts | None = None
    """What the operators compute and move; None in a timeline made by hand."""
    exact: int | None = None
    """The only micro-batch that the timeline holds for; None where sizes are affine and every one is covered."""
    facts: dict[str, str | int | float] = field(default_factory=dict)
    """What was traced: model class, sequence length, versions, seconds."""
    attention_kernels: tuple[AttentionKernel, ...] = ()
    """Which of torch's attention kernels the trace took the device to choose. On CUDA never cuDNN's, which torch
    prefers on Hopper and later, and whose outputs are those of the flash kernel."""
    unfused: dict[str, Unfused] = field(default_factory=dict)
    """Modules that compute in several operators what one could, by name."""
    micro_steps: int = 1
    """How many micro-steps `micro` and `single` stand for, all that an optimizer step has."""
    blocks: TracedBlocks | None = None
    """Where the repeated blocks lie in `micro` and `single`; None where they are not apart."""
    several: Timeline | None = None
    """The training with two micro-steps for each optimizer step, where they do more than add to gradients of before:
    DeepSpeed treats the last micro-step apart, and keeps buffers for the others."""

    def of(self, accumulating: bool) -> Timeline:
        """Return the timeline whose slots and segments make up steps of several micro-steps, or of one."""
        return self.several if accumulating and self.several is not None else self

    def activations_on_disk(self, micro_batch: int) -> int:
        """Return the bytes of activations that a micro-step makes anew on the disk."""
        base, slope = self._on_disk[micro_batch == 1 and self.single is not None]
        return base + slope * micro_batch

    @cached_property
    def _on_disk(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Base and slope of these bytes: of `micro`, and of `single`."""
        slots, disk, activation = self.slots, PLACES.index("disk"), CATEGORIES.index("activation")

        def summed(micro: StepEvents) -> tuple[int, int]:
            made = [
                slot
                for slot in micro.events
                if slot >= 0 and slots.place[slot] == disk and slots.category[slot] == activation
            ]
            return sum(slots.base[slot] for slot in made), sum(slots.slope[slot] for slot in made)

        return summed(self.micro), summed(self.single or self.micro)

    def sizes(self, micro_batch: int, rounding: int = 1) -> list[int]:
        """Return the bytes of every slot, rounded up to a multiple of `rounding`."""
        pairs = zip(self.slots.base, self.slots.slope, strict=True)
        if rounding == 1:
            return [base + slope * micro_batch for base, slope in pairs]
        return [-(-(base + slope * micro_batch) // rounding) * rounding for base, slope in pairs]

    def covers(self, micro_batch: int) -> bool:
        """Say whether this micro-batch can be priced."""
        if self.several is not None and not self.several.covers(micro_batch):
            return False
        if self.exact is not None:
            return micro_batch == self.exact
        return micro_batch > 1 or self.single is not None

    def program(self, micro_batch: int, accumulating: bool = False, updates: int = 2) -> Program:
        """Compose a probe of `updates` optimizer steps, each after one micro-step (two where accumulating).

        Its slots are those of `of(accumulating)`.
        """
        if self.of(accumulating) is not self:
            return self.of(accumulating).program(micro_batch, updates=updates)
        assert self.covers(micro_batch), f"micro-batch {micro_batch} was not traced"
        micro = self.micro if micro_batch > 1 or self.single is None else self.single
        parts = Parts(self.build, self.micro, self.first_update, self.update)
        return compose(parts, micro, accumulating, updates)

    def peak(
        self, micro_batch: int, accumulating: bool = False, place: Place = "device", blas_workspace: int = 0
    ) -> Peak:
        """Return the peak of the tensors' own bytes (cpu), or of the allocator's blocks of 512 B (cuda).

        `blas_workspace` (bytes) is what a step has beside its tensors: a build that tops those may not top both.
        """
        if self.of(accumulating) is not self:
            return self.of(accumulating).peak(micro_batch, place=place, blas_workspace=blas_workspace)
        program = self.program(micro_batch, accumulating)
        sizes = self.sizes_in(place, micro_batch)
        return self._explain(program, sizes, program.fullest(sizes, blas_workspace))

    def allocated(self, micro_batch: int, accumulating: bool = False, place: Place = "device") -> int:
        """Return the bytes of `peak` alone; fast."""
        program = self.program(micro_batch, accumulating)
        return max(program.levels(self.of(accumulating).sizes_in(place, micro_batch)), default=0)

    def evaluated(self, micro_batch: int, evaluation_micro_batch: int) -> int:
        """Return the bytes of the peak of an evaluation after training at `micro_batch`, counted as in `peak`."""
        assert self.evaluation is not None, "the evaluation was traced"
        between_steps = self.program(micro_batch).levels(self.sizes_in("device", micro_batch))[-1]
        sizes = self.sizes_in("device", evaluation_micro_batch)
        return between_steps + max(Program(self.evaluation.events, []).levels(sizes), default=0)

    def curve(self, micro_batch: int, accumulating: bool = False) -> list[tuple[Phase, int, int]]:
        """Return (phase, optimizer step, bytes on the device) after every event of the whole program."""
        program = self.program(micro_batch, accumulating)
        levels = program.levels(self.of(accumulating).sizes_in("device", micro_batch))
        result: list[tuple[Phase, int, int]] = []
        for (start, phase, step), end in zip(
            program.marks, [*(mark[0] for mark in program.marks[1:]), len(levels)], strict=True
        ):
            result += [(phase, step, level) for level in levels[start:end]]
        return result

    def sizes_in(self, place: Place, micro_batch: int, rounding: int | None = None) -> list[int]:
        """Return the size of every slot in bytes at a micro-batch, and 0 for slots in another place.

        Sizes are rounded up to multiples of `rounding` bytes: by default to the CUDA allocator's blocks on a GPU, and
        not at all elsewhere.
        """
        if rounding is None:
            rounding = CUDA_BLOCK if self.device == "cuda" and place == "device" else 1
        sizes = self.sizes(micro_batch, rounding)
        wanted = PLACES.index(place)
        if any(value != wanted for value in self.slots.place):
            return [
                size if value == wanted else 0 for size, value in zip(sizes, self.slots.place, strict=True)
            ]
        return sizes

    def _explain(self, program: Program, sizes: Sequence[int], fullest: Fullest) -> Peak:
        alive: dict[int, int] = defaultdict(int)  # slot -> how many instances are alive
        for event in program.events[: fullest.event + 1]:
            if event >= 0:
                alive[event] += 1
            else:
                alive[~event] -= 1
        breakdown: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
        holders: dict[tuple[int, int], int] = defaultdict(int)
        for slot, count in alive.items():
            size = sizes[slot] * count
            breakdown[CATEGORIES[self.slots.category[slot]]] += size
            holders[self.slots.module[slot], self.slots.category[slot]] += size
        breakdown["workspace"] += fullest.workspaces
        phase, step = program.phase_at(fullest.during)
        named = [
            Holder(self.modules[module] or _unnamed(CATEGORIES[category], phase), CATEGORIES[category], size)
            for (module, category), size in holders.items()
        ]
        named.append(Holder("cuBLAS", "workspace", fullest.workspaces))
        largest = sorted((holder for holder in named if holder.bytes), key=lambda holder: -holder.bytes)
        return Peak(
            bytes=fullest.bytes,
            phase=phase,
            step=step,
            breakdown=breakdown,
            holders=tuple(largest),
        )

    def dump(self) -> str:
        """Return the timeline as JSON text, for records that last."""
        return json.dumps({"format": FORMAT, **_fields(self)}, separators=(",", ":"), default=_fields)

    @classmethod
    def parse(cls, text: str) -> Timeline:
        """Read what `dump` wrote. Raises InputError where it is something else or of another format."""
        try:
            return cls._checked(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise error if isinstance(error, InputError) else InputError(f"not a trace: {error}") from error

    def pack(self) -> bytes:
        """Return the timeline as bytes, for the way from a worker and for the cache."""
        return pack({"format": FORMAT, **_fields(self)})

    @classmethod
    def unpack(cls, content: bytes) -> Timeline:
        """Read what `pack` wrote. Raises InputError where it is something else or of another format."""
        try:
            return cls._checked(unpack(content))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise error if isinstance(error, InputError) else InputError(f"not a trace: {error}") from error

    @classmethod
    def _checked(cls, data: dict[str, Any]) -> Timeline:
        if data.pop("format") != FORMAT:
            raise InputError(f"this trace was not written in format {FORMAT}; trace the model again")
        return cls._parsed(data)

    @classmethod
    def _parsed(cls, data: dict[str, Any]) -> Timeline:
        for name in ("build", "micro", "single", "first_update", "update", "evaluation"):
            data[name] = None if data[name] is None else StepEvents.parse(data[name])
        data["attention_kernels"] = tuple(data["attention_kernels"])
        data["slots"] = Slots(**data["slots"])
        data["work"] = None if data["work"] is None else OpCounts.parse(data["work"])
        data["blocks"] = None if data["blocks"] is None else TracedBlocks.parse(data["blocks"])
        data["several"] = None if data["several"] is None else cls._parsed(data["several"])
        return cls(**data)
