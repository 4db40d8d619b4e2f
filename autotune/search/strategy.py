"""What a strategy answers: the next candidate to try, or that the search is over."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from autotune.accumulation import Accumulation, accumulate, is_balanced, largest_micro_batch
from autotune.bounds import MOST_SAMPLES
from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.outcome import Memory
from autotune.prediction import Prediction
from autotune.search.path import SearchEnd, Step
from autotune.specs import Goal, ModelFacts, RunSpec
from autotune.techniques.axis import Context
from autotune.techniques.sharding import lacks_groups, lacks_nodes

NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Skip:
    """A candidate that the walk passed over because the memory model says that it does not fit."""

    candidate: Candidate
    node: str
    prediction: Prediction


@dataclass(frozen=True)
class Try:
    """Probe this candidate next."""

    candidate: Candidate
    node: str
    why: str
    path: tuple[Step, ...] = ()
    """How the graph was walked so far."""
    skipped: tuple[Skip, ...] = ()
    """What was passed over on the way."""


@dataclass(frozen=True)
class Done:
    """Nothing more to try."""

    why: str
    reason: SearchEnd
    path: tuple[Step, ...] = ()
    skipped: tuple[Skip, ...] = ()


Decision = Try | Done


@dataclass(frozen=True)
class Scope:
    """What bounds a search besides its space: the goal in tokens, and the memory granted."""

    base: Candidate
    """The candidate before any node has changed it: carries what the user fixed, such as the optimizer."""
    goal: Goal
    tokens_per_sample: int
    """Tokens that one row of a batch counts for."""
    budget: int
    """Bytes of the device."""
    tensor_parallel: int = 1
    """Ranks that take the same samples."""

    @classmethod
    def of(cls, spec: RunSpec, model: ModelFacts, budget: int) -> Scope:
        """Return what bounds the search of a run, once its model is known."""
        base = Candidate(
            optimizer=spec.optimizer,
            # Several ranks replicate the model unless a node of the graph shards it.
            sharding="ddp" if spec.goal.gpus > 1 else "none",
            sequences="full" if spec.goal.lengths is None else "padded",
        )
        tokens = model.tokens_per_sample
        return cls(base=base, goal=spec.goal, tokens_per_sample=tokens, budget=budget).of_rung(base)

    def of_rung(self, candidate: Candidate) -> Scope:
        """Return the scope of a candidate's micro-batches: of its rows, on as many ranks as take samples of their own.

        A row counts for the tokens that it really holds. Padding counts for nothing: it teaches nothing, and a global
        batch would shrink with every token of it. Fewer ranks take samples where some share a model.
        """
        lengths, tokens = self.goal.lengths, self.tokens_per_sample
        if lengths is not None:
            tokens = lengths.tokens_per_row(candidate.sequences, self.goal.seq_len)
        return replace(self, tokens_per_sample=tokens, tensor_parallel=candidate.tensor_parallel)

    @property
    def ranks(self) -> int:
        """Devices that take samples of their own."""
        return max(1, self.goal.gpus // self.tensor_parallel)

    @property
    def target(self) -> int:
        """The global batch, in tokens that are not padding; the same whatever the rows hold."""
        lengths = self.goal.lengths
        return self.goal.target.tokens(self.tokens_per_sample if lengths is None else lengths.mean)

    def passes_over(self, candidate: Candidate) -> bool:
        """Tell whether the goal leaves a rung nothing to do, or nothing that another does not: no trial is needed."""
        context = Context(world_size=self.goal.gpus, nodes=self.goal.nodes)
        return lacks_nodes(candidate, context) is not None or lacks_groups(candidate, context) is not None

    def check(self) -> None:
        """Raise InputError when no micro-batch at all can make up the global batch."""
        _ = self.limit

    @property
    def limit(self) -> int:
        """The largest micro-batch (samples) that the global batch has use for, or any. Raises InputError if below 1."""
        useful = largest_micro_batch(self.target, self.tokens_per_sample, self.ranks, self.goal.exact)
        return min(useful, MOST_SAMPLES)

    @property
    def usable(self) -> int:
        """Bytes that a winner may take: the budget less the headroom."""
        return int(self.budget * (1 - self.goal.headroom))

    def fits(self, memory: Memory) -> bool:
        """Tell whether a measured peak leaves the headroom free."""
        return memory.peak() <= self.usable

    def between(self, low: int, wanted: int, high: int, without: Set[int] = NONE) -> int | None:
        """Return a useful micro-batch strictly between `low` and `high`, near `wanted`; None if there is none.

        It is none of `without`.
        """
        downwards = range(min(wanted, high - 1), low, -1)
        upwards = range(max(wanted, low) + 1, high)
        sizes = (size for size in (*downwards, *upwards) if size not in without)
        return next((size for size in sizes if self.is_useful(size)), None)

    def up_to(self, low: int, high: int, without: Set[int] = NONE) -> int | None:
        """Return the largest useful micro-batch above `low` and at most `high`, none of `without`; None if there is
        none."""
        sizes = (size for size in range(min(high, self.limit), low, -1) if size not in without)
        return next((size for size in sizes if self.is_useful(size)), None)

    def above(self, low: int) -> int | None:
        """Return the smallest useful micro-batch above `low`; None where the global batch has use for none."""
        return next((size for size in range(low + 1, self.limit + 1) if self.is_useful(size)), None)

    def is_useful(self, micro_batch: int) -> bool:
        """Tell whether a micro-batch is worth a probe: it divides the goal exactly, or is balanced."""
        if self.goal.exact:
            return self.allows(micro_batch)
        return is_balanced(self.target, micro_batch, self.tokens_per_sample, self.ranks)

    def accumulation(self, micro_batch: int) -> Accumulation:
        """Return how a micro-batch adds up to the global batch. Raises InputError where `exact` forbids it."""
        return accumulate(self.target, micro_batch, self.tokens_per_sample, self.ranks, exact=self.goal.exact)

    def allows(self, micro_batch: int) -> bool:
        """Tell whether this micro-batch can make up the global batch."""
        try:
            self.accumulation(micro_batch)
        except InputError:
            return False
        return True
