"""Where the passes of a model's blocks begin and end in a recorded micro-step, in events and in calls of operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autotune.outcome import Phase
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.depth import NotAlike, Span, Spans
from autotune.timeline.traced_blocks import BlockWork, SortsOfWork, TracedBlocks
from autotune.worker.blocks import find_blocks
from autotune.worker.tracing.op_counter import Folded, counted
from autotune.worker.tracing.storage_recorder import StorageRecorder


class BlockPasses(NamedTuple):
    """Where the blocks of a model lie in a micro-step, by their numbers."""

    spans: Spans
    """In events."""
    calls: dict[Phase, list[Span]]
    """In calls of operators, by phase."""


class Borders:
    """Notes when blocks are entered and left, and when the gradients of what they gave are there."""

    def __init__(self, recorder: StorageRecorder, blocks: Sequence[nn.Module]) -> None:
        self._recorder = recorder
        self._blocks = blocks
        self._end = 0
        """How many events there are in all."""
        self._places: dict[tuple[Phase, int], int] = {}
        self._calls: dict[tuple[Phase, int], int] = {}

    @contextmanager
    def noted(self) -> Iterator[Borders]:
        """Follow the blocks while open."""
        handles: list[Any] = []
        for number, block in enumerate(self._blocks):
            # In front of hooks that gather the block's parameters, behind those that let go of them.
            handles.append(block.register_forward_pre_hook(partial(self._enter, number), prepend=True))
            handles.append(block.register_forward_hook(partial(self._leave, number)))
        try:
            yield self
        finally:
            self._end = self._recorder.allocations.position
            for handle in handles:
                handle.remove()

    def _enter(self, number: int, _module: nn.Module, args: tuple[Any, ...]) -> None:
        self._note("forward", number)
        if number == 0:
            self._follow(-1, args)

    def _leave(self, number: int, _module: nn.Module, _args: tuple[Any, ...], result: Any) -> None:
        if number == len(self._blocks) - 1:
            self._note("forward", len(self._blocks))
        self._follow(number, result)

    def _follow(self, number: int, result: Any) -> None:
        """Note when the gradient of what a block gives is there: its own backward begins, of the one after it ends."""

        def arrived(_gradient: Tensor) -> None:
            self._note("backward", number)

        if torch.is_grad_enabled():
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
                    value.register_hook(arrived)
                    return

    def _note(self, phase: Phase, number: int) -> None:
        self._places.setdefault((phase, number), self._recorder.allocations.position)
        self._calls.setdefault((phase, number), len(self._recorder.log.running))

    def spans(self) -> Spans:
        """Return the spans in events. Raises NotAlike where blocks did not run one after the other."""
        return Spans(self._forward(self._places), self._backward(self._places, self._end))

    def calls(self) -> dict[Phase, list[Span]]:
        """Return the spans in calls, by phase."""
        calls = self._recorder.log.calls
        found: dict[Phase, list[Span]] = {}
        if "forward" in calls:
            found["forward"] = self._forward(self._calls)
        if "backward" in calls:
            found["backward"] = self._backward(self._calls, len(calls["backward"]))
        return found

    def passes(self) -> BlockPasses | None:
        """Return where the blocks lie in the stretch that was just recorded; None where they are not apart."""
        try:
            return BlockPasses(self.spans(), self.calls())
        except NotAlike:
            return None

    def _forward(self, noted: dict[tuple[Phase, int], int]) -> list[Span]:
        return _pairs([noted.get(("forward", number), -1) for number in range(len(self._blocks) + 1)])

    def _backward(self, noted: dict[tuple[Phase, int], int], end: int) -> list[Span]:
        if not any(phase == "backward" for phase, _ in noted):
            return []
        places = [noted.get(("backward", number), -1) for number in reversed(range(len(self._blocks)))]
        places.append(noted.get(("backward", -1), end))
        return list(reversed(_pairs(places)))


def _pairs(places: list[int]) -> list[Span]:
    if places != sorted(places) or places[0] < 0:
        raise NotAlike("the blocks do not run one after the other")
    return list(pairwise(places))


Named = Sequence[tuple[str, nn.Module]]
"""The repeated blocks of a model, with their names in it."""


def followed_blocks(request: ProbeRequest, model: nn.Module) -> Named:
    """Return the repeated blocks with their names; none where an engine of its own runs them."""
    if request.candidate.engine != "torch":
        return ()
    found = find_blocks(model, request.model.block_class)
    names = {id(module): name for name, module in model.named_modules()}
    return () if found is None else [(names[id(block)], block) for block in found.modules]


def traced_blocks(
    request: ProbeRequest, model: nn.Module, blocks: Named, micro: BlockPasses | None, single: BlockPasses | None,
    folded: Folded,
) -> TracedBlocks | None:  # fmt: skip
    """Return where the followed blocks lie in a trace; None where there are none, or they are not apart."""
    if not blocks or micro is None:
        return None
    checkpointed = _checkpointed(request, len(blocks))
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    parameters = [[numbers[id(parameter)] for parameter in block.parameters()] for _, block in blocks]
    owned = [number for own in parameters for number in own]
    if len(set(owned)) < len(owned):
        return None

    def work(number: int) -> BlockWork:
        return BlockWork(
            *(
                {
                    phase: counted(calls[phase][slice(*spans[number])])
                    for phase, spans in (passes.calls if passes else {}).items()
                }
                for passes, calls in ((micro, folded.micro), (single, folded.single))
            )
        )

    # Of each sort one from its middle; of a single sort nothing is asked.
    several = 0 < checkpointed < len(blocks)
    work_of_sorts = (
        SortsOfWork(work(checkpointed // 2), work((checkpointed + len(blocks)) // 2)) if several else None
    )
    return TracedBlocks(
        [name for name, _ in blocks],
        parameters,
        checkpointed,
        micro.spans,
        single and single.spans,
        work_of_sorts,
    )


def _checkpointed(request: ProbeRequest, blocks: int) -> int:
    """Return how many of so many blocks are checkpointed."""
    candidate = request.candidate
    if candidate.checkpointing == "none":
        return 0
    return blocks if candidate.checkpointed_blocks == "all" else candidate.checkpointed_blocks
