"""Count what operators do while a training is traced, call by call; `op_facts` says what one call does."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from autotune.outcome import Phase
from autotune.timeline.op_counts import Counts, OpCounts, Operator, Operators, OpKind
from autotune.worker.tracing.fused_work import FusedWork
from autotune.worker.tracing.op_facts import OpFacts, tensor_bytes

NOTHING = -1
"""The number of an operator that does no work: a view, an empty tensor."""

Calls = dict[Phase, list[int]]
"""By phase, the numbers of the operators that ran, in order."""


class OpNumbers:
    """The numbers of operators by what they do, which several traces may share."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.facts: dict[Any, OpFacts] = {}
        self._numbers: dict[Operator, int] = {}

    def of(self, operator: Operator) -> int:
        """Return an operator's number, a new one for a new operator."""
        found = self._numbers.get(operator)
        if found is None:
            found = self._numbers[operator] = len(self.operators)
            self.operators.append(operator)
        return found


class OpCounter:
    """Numbers operators by what they do, and keeps the numbers of those that ran."""

    def __init__(self, device: str, numbers: OpNumbers) -> None:
        self._device = device
        self._numbers = numbers
        self.calls: Calls = {}
        """Of the stretch that is being recorded."""
        self.running: list[int] = []
        """The calls of the current phase; NOTHING among them stands for no work."""

    @property
    def operators(self) -> list[Operator]:
        """The operators by their numbers."""
        return self._numbers.operators

    def begin(self) -> None:
        """Start a stretch; what ran before is left to whoever has taken `calls`."""
        self.calls = {}
        self.running = []

    def enter(self, phase: Phase) -> None:
        """Say that a phase begins."""
        self.running = self.calls.setdefault(phase, [])

    def fused(self, tensors: list[Tensor]) -> None:
        """Note a fused kernel: it reads or writes each of its tensors once."""
        size = sum({value.untyped_storage()._cdata: tensor_bytes(value) for value in tensors}.values())
        operator = Operator("fused", "memory", "none", 1, 0, size)
        self.running.append(self._numbers.of(operator))

    def fused_work(self, work: FusedWork) -> None:
        """Note what all fused kernels of a program compute; the bytes that each of them moves are noted by `fused`."""
        kinds: tuple[tuple[OpKind, int], ...] = (
            ("fused_pointwise", work.pointwise), ("fused_random", work.random),
        )  # fmt: skip
        for kind, elements in kinds:
            if elements:
                self.running.append(self._numbers.of(Operator(kind, kind, "none", 1, elements, 0)))

    def number(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
        """Return the number of what a call did."""
        facts = self._numbers.facts.get(func)
        if facts is None:
            facts = self._numbers.facts[func] = OpFacts(func)
        operator = facts.describe(self._device, args, kwargs, result)
        return NOTHING if operator is None else self._numbers.of(operator)

    def launched(self, name: str, elements: int, moved: int) -> None:
        """Note a kernel that is no operator of torch: the numbers that it computes, and the bytes that it moves."""
        self.running.append(self._numbers.of(Operator(name, "memory", "none", 1, elements, moved)))

    def folded(
        self, least: Calls, more: Calls, single: Calls | None, update: Calls, micro_batch: int, apart: int = 1
    ) -> Folded:
        """Fold the calls of micro-steps at `micro_batch` and at `apart` more into operators affine in it.

        The optimizer step does not know the micro-batch. What ran at only one of the two counts as constant. For a
        trace that holds for one micro-batch alone, `more` is `least` itself.
        """
        folder = _Folder(self.operators, micro_batch, apart)
        of_micro = {phase: folder.affine(calls, more.get(phase, [])) for phase, calls in least.items()}
        of_single = {phase: folder.same(calls) for phase, calls in (single or {}).items()}
        micro = {phase: counted(indices) for phase, indices in of_micro.items()}
        alone = (
            {phase: counted(indices) for phase, indices in of_single.items()} if single is not None else None
        )
        updates = {phase: counted(folder.same(calls)) for phase, calls in update.items()}
        work = OpCounts(folder.operators, micro, alone, updates)
        if single is None:
            return Folded(work, of_micro, of_single)
        said = sum(work.flops(1).values())
        thought = sum(OpCounts(folder.operators, micro, None, updates).flops(1).values())
        if abs(said - thought) > 0.01 * said:
            note = (
                f"FLOPs are not affine in the micro-batch: {said:.3g} at 1, where {thought:.3g} were expected"
            )
            work = OpCounts(folder.operators, micro, alone, updates, note)
        return Folded(work, of_micro, of_single)


class Folded(NamedTuple):
    """The operators of a trace, and which of them each call was."""

    counts: OpCounts
    micro: Calls
    """Indices into the operators, by phase; NOTHING for a call that does no work."""
    single: Calls


def counted(indices: Iterable[int]) -> Counts:
    """Return how often each operator runs."""
    return list(Counter(index for index in indices if index != NOTHING).items())


class _Folder:
    """Gathers operators that are alike."""

    def __init__(self, operators: list[Operator], micro_batch: int, apart: int) -> None:
        self.operators = Operators()
        self._known = operators
        self._micro_batch = micro_batch
        self._apart = apart
        self._indices: dict[tuple[int, int], int] = {}

    def same(self, calls: Iterable[int]) -> list[int]:
        """Return the operator of each call that does not change with the micro-batch."""
        return [NOTHING if call == NOTHING else self._index(call, call) for call in calls]

    def affine(self, least: Iterable[int], more: Iterable[int]) -> list[int]:
        """Return the operator of each call, found with its twin of the next micro-batch, in the order of calls."""
        twins: dict[str, deque[int]] = defaultdict(deque)
        for call in more:
            if call != NOTHING:
                twins[self._known[call].name].append(call)
        found = []
        for call in least:
            if call == NOTHING:
                found.append(NOTHING)
                continue
            waiting = twins[self._known[call].name]
            found.append(self._index(call, waiting.popleft() if waiting else call))
        return found

    def _index(self, least: int, more: int) -> int:
        found = self._indices.get((least, more))
        if found is None:
            found = self._indices[least, more] = len(self._indices)
            small, large = self._known[least], self._known[more]
            flops, moved = large.flops - small.flops, large.bytes - small.bytes
            self.operators.add(small, flops // self._apart, moved // self._apart, self._micro_batch)
        return found
