"""What a strategy may know, beside the history: one frozen record of the space, the goal, the limits and the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Protocol, Self

from autotune.candidate import Candidate
from autotune.memory.predictor import Predictor
from autotune.options import Limits
from autotune.outcome import Memory, StepTiming
from autotune.search.ladder import Ladder
from autotune.search.micro_batches import MicroBatches
from autotune.search.space import Space
from autotune.site import Site
from autotune.specs import DeviceSpeed, Goal, ModelFacts, ModelSpec, RunSpec
from autotune.techniques import check, consent
from autotune.techniques.axis import Context
from autotune.techniques.check import Refusal
from autotune.techniques.consent import ByConsent
from autotune.techniques.constraint import ANY
from autotune.techniques.sharding import lacks_groups, lacks_nodes, usual_sharding

DIVIDING = ("sequences", "tensor_parallel")
"""Axes that decide how a global batch is divided: what a row holds, and how many ranks take rows of their own."""
MOST_COMBINATIONS = 50_000
"""Combinations of axes' values of which all are looked at: more take longer than a probe."""


class Speed(Protocol):
    """Says what a step takes before it is probed."""

    def timing(self, candidate: Candidate) -> StepTiming | None:
        """Return the parts of a global step (seconds), uncorrected; None where nothing tells."""
        ...


@dataclass(frozen=True)
class SearchContext:
    """Everything that a search is bound by. Of a run only what was traced and refused is added (`informed`)."""

    space: Space
    """The values that each axis may have, the rules between them, and the decision graph."""
    base: Candidate
    """The candidate before a strategy has changed it: carries what the user fixed, such as the optimizer."""
    goal: Goal
    tokens_per_sample: int
    """Tokens that a sample of the model counts for."""
    budget: int
    """Bytes of the device."""
    allowed: tuple[ByConsent, ...] = ()
    """What the user allowed beside the values of the space that was asked for, the smallest change first."""
    limits: Limits = field(default_factory=Limits)
    """What the run may spend; who asks a strategy holds it to them (`strategy.decide`)."""
    seed: int = 0
    """For what a strategy draws."""
    site: Site | None = None
    """The device that probes run on and its machine, which need not be this one; None is not judged."""
    model: ModelFacts | None = None
    """What the model turned out to be; None is not judged."""
    source: ModelSpec | None = None
    """Where the model comes from; None is not judged."""
    device_speed: DeviceSpeed | None = None
    """What the device was measured to reach; None where its data sheet says it, or it was not timed."""
    predictor: Predictor | None = None
    """The memory model with the rungs that were traced so far, not yet corrected by the history; None without one."""
    speed: Speed | None = None
    """The roofline of the same rungs; None where the device's peaks are unknown."""
    untraceable: frozenset[Candidate] = frozenset()
    """Rungs that no trace can price."""
    refused: frozenset[Candidate] = frozenset()
    """Rungs that a strategy asked to have traced, and that cannot run where probes do: for want of disk, or memory."""

    @classmethod
    def of(
        cls,
        spec: RunSpec,
        model: ModelFacts,
        budget: int,
        site: Site | None = None,
        device_speed: DeviceSpeed | None = None,
    ) -> Self:
        """Return what bounds the search of a run, once its model is known."""
        space = Space.load(spec.space, "space")
        base = Candidate(
            optimizer=spec.optimizer,
            sharding=usual_sharding(spec.goal.gpus),
            sequences="full" if spec.goal.lengths is None else "padded",
        )
        if model.precision is not None:
            base = base.model_copy(update={"precision": model.precision})
        if spec.model.command is not None:
            base = space.plain(base)
        context = cls(
            space=space, base=base, goal=spec.goal, tokens_per_sample=model.tokens_per_sample,
            budget=budget, limits=spec.limits, seed=spec.seed, site=site, model=model, source=spec.model,
            device_speed=device_speed,
        )  # fmt: skip
        return context.allowing(spec.allow)

    def allowing(self, names: Iterable[str]) -> Self:
        """Return this context where values that change what is learned may be tried too, by the names of `--allow`.

        Raises InputError for names that there are not.
        """
        more = consent.allowed(names)
        space = self.space.widened(((one.axis, one.value) for one in more), self.base)
        return replace(self, space=space, allowed=more)

    def batches(self, candidate: Candidate) -> MicroBatches:
        """Return the micro-batches of a candidate's rung: of its rows, on as many ranks as take samples of their own.

        A row counts for the tokens that it really holds. Padding counts for nothing: it teaches nothing, and a global
        batch would shrink with every token of it. Fewer ranks take samples where some share a model.
        """
        kind = candidate.sequences, candidate.tensor_parallel
        if kind not in self._batches:
            lengths, tokens = self.goal.lengths, self.tokens_per_sample
            if lengths is not None:
                tokens = lengths.tokens_per_row(candidate.sequences, self.goal.seq_len)
            ranks = max(1, self.goal.gpus // candidate.tensor_parallel)
            self._batches[kind] = MicroBatches(self.target, tokens, ranks, self.goal.exact)
        return self._batches[kind]

    @cached_property
    def _batches(self) -> dict[tuple[str, int], MicroBatches]:
        """By what a row holds, and how many ranks share a model."""
        return {}

    @cached_property
    def allowances(self) -> tuple[dict[str, Any], ...]:
        """Changes of a candidate that the user allowed: each alone, the smallest first; then all axes together."""
        together = {one.axis: one.value for one in self.allowed}
        alone = tuple({one.axis: one.value} for one in self.allowed)
        return (*alone, together) if len(together) > 1 else alone

    def values(self, axis: str) -> tuple[Any, ...]:
        """Return the values that an axis of the space may have, of an open one those that the model has a use for."""
        return self.space.values(axis, None if self.model is None else self.model.blocks)

    def seconds(self, candidate: Candidate) -> float | None:
        """Return the uncorrected seconds of a global step, whether or not it fits; None without a price."""
        try:
            return self._prices[candidate]
        except KeyError:
            return self._prices.setdefault(candidate, self._price(candidate))

    def _price(self, candidate: Candidate) -> float | None:
        batches = self.batches(candidate)
        timing = None if self.speed is None else self.speed.timing(candidate)
        if timing is None or not batches.allows(candidate.micro_batch):
            return None
        return timing.global_step(batches.steps(candidate.micro_batch))

    @cached_property
    def _prices(self) -> dict[Candidate, float | None]:
        """Seconds by candidate, as far as somebody asked for them."""
        return {}

    @property
    def target(self) -> int:
        """The global batch, in tokens that are not padding; the same whatever the rows hold."""
        lengths = self.goal.lengths
        return self.goal.target.tokens(self.tokens_per_sample if lengths is None else lengths.mean)

    @property
    def usable(self) -> int:
        """Bytes that a winner may take: the budget less the headroom."""
        return int(self.budget * (1 - self.goal.headroom))

    def fits(self, memory: Memory) -> bool:
        """Tell whether a measured peak leaves the headroom free."""
        return memory.peak() <= self.usable

    @cached_property
    def ladder(self) -> Ladder:
        """Every rung that may be tried; of a space with too many combinations those of its graph alone.

        Of an axis that takes any number those are left out which the space does not list: which of them is best follows
        from the memory at hand (`search.partial_checkpointing`).
        """
        values = {axis: self.space.values(axis) for axis in self.space.axes}
        if math.prod(map(len, values.values())) <= MOST_COMBINATIONS:
            return Ladder(self.base, tuple(self.space.axes), tuple(self._open(values)))
        walked = [
            rung.model_copy(update=changes)
            for changes in ({}, *self.allowances)
            for rung in self.space.rungs(self.base)
            if self.is_open(rung.model_copy(update=changes))
        ]
        return Ladder(self.base, tuple(self.space.axes), walked)

    def rungs(self) -> Iterator[Candidate]:
        """Yield every rung that may be tried, in the order of the space's axes and values; the last changes fastest.

        An axis that the space leaves out keeps its value in `base`.
        """
        yield from self._open({axis: self.values(axis) for axis in self.space.axes})

    def _open(self, axes: Mapping[str, Sequence[Any]]) -> Iterator[Candidate]:
        for values in product(*axes.values()):
            rung = self.base.model_copy(update=dict(zip(axes, values, strict=True))).rung()
            if self.is_open(rung):
                yield rung

    def informed(
        self,
        predictor: Predictor,
        speed: Speed | None,
        untraceable: frozenset[Candidate] = frozenset(),
        refused: frozenset[Candidate] = frozenset(),
    ) -> Self:
        """Return this context with what was learnt since; what does not follow from that is kept as it was computed."""
        context = replace(self, predictor=predictor, speed=speed, untraceable=untraceable, refused=refused)
        follows = {"ladder", "_batches", "_takes_numbers"} | ({"_prices"} if speed is self.speed else set())
        for kept in follows & self.__dict__.keys():
            context.__dict__[kept] = self.__dict__[kept]
        return context

    def takes_numbers(self, rung: Candidate) -> bool:
        """Tell whether a rung checkpoints all blocks where the space lets it be any number of them."""
        if rung.checkpointing == "none" or rung.checkpointed_blocks != "all":
            return False
        if rung not in self._takes_numbers:
            several = self.model is not None and self.model.blocks > 1
            any_number = ANY in self.space.axes.get("checkpointed_blocks", ())
            one = rung.model_copy(update={"checkpointed_blocks": 1})
            self._takes_numbers[rung] = several and any_number and self.is_open(one)
        return self._takes_numbers[rung]

    @cached_property
    def _takes_numbers(self) -> dict[Candidate, bool]:
        """What was asked of rungs so far."""
        return {}

    def is_open(self, rung: Candidate) -> bool:
        """Tell whether a rung may be tried: it is legal, can run as far as is known, and the goal has use for it."""
        smallest = self.batches(rung).above(0)
        return smallest is not None and not self.passes_over(rung) and self.refusal(rung.at(smallest)) is None

    def check(self) -> None:
        """Raise InputError where no micro-batch makes up the global batch, whatever rows hold and ranks share."""
        kinds = product(*({getattr(self.base, axis), *self.space.axes.get(axis, ())} for axis in DIVIDING))
        rungs = (self.base.model_copy(update=dict(zip(DIVIDING, kind, strict=True))) for kind in kinds)
        if not any(self.batches(rung).limit for rung in rungs):
            self.batches(self.base).check()

    def _unsaid(self, candidate: Candidate) -> Refusal | None:
        """Return which value the space of a user's command does not have, or None."""
        for axis, values in self.space.axes.items():
            if getattr(candidate, axis) not in values:
                return Refusal(
                    axis, "space", (), f"the command is not told {axis} {getattr(candidate, axis)}"
                )
        return None

    def passes_over(self, candidate: Candidate) -> bool:
        """Tell whether a rung has nothing to do, or nothing that another does not do better: no trial is needed.

        It has nothing to do, too, where no micro-batch of its rows makes up the global batch.
        """
        if self.emulates(candidate.precision) or self.stands_for_sdpa(candidate):
            return True
        if not self.batches(candidate).limit:
            return True
        context = Context(world_size=self.goal.gpus, nodes=self.goal.nodes)
        return lacks_nodes(candidate, context) is not None or lacks_groups(candidate, context) is not None

    def stands_for_sdpa(self, candidate: Candidate) -> bool:
        """Tell whether the space's `sdpa` stands for the candidate's other attention: all that the model has."""
        only = None if self.model is None else self.model.attention
        return candidate.attention == only != "sdpa" and "sdpa" in self.space.axes.get("attention", ())

    def emulates(self, precision: str) -> bool:
        """Tell whether the space has fp32, and the device only emulates a precision, which is not tried then.

        fp32 rounds less, so what is learned is left alone; what it takes more of memory, other techniques save.
        """
        speed, listed = self.device_speed, self.space.axes.get("precision", ())
        return speed is not None and {"fp32", precision} <= {*listed} and speed.emulates(precision)

    def computed_natively(self, rung: Candidate) -> Candidate:
        """Return a rung in the precision of the space in which the device is fastest, where it emulates the rung's."""
        speed = self.device_speed
        if speed is None or not self.emulates(rung.precision):
            return rung
        choices = [value for value in self.space.axes["precision"] if value in speed.matrix_flops]
        fastest = max(choices, key=lambda value: speed.matrix_flops[value])
        return rung.model_copy(update={"precision": fastest})

    def refusal(self, candidate: Candidate) -> Refusal | None:
        """Return why a candidate is illegal in the space, or cannot run as far as the context is known; or None."""
        batches = self.batches(candidate)
        steps = batches.steps(candidate.micro_batch) if batches.allows(candidate.micro_batch) else 1
        device = self.site.device if self.site else None
        # A simulated device trains nowhere: nothing has to be installed.
        machine = self.site.machine if self.site and not self.site.device.simulated else None
        context = Context(
            accumulation_steps=steps, world_size=self.goal.gpus, nodes=self.goal.nodes, device=device, machine=machine,
            model=self.model, source=self.source, with_lengths=self.goal.lengths is not None,
        )  # fmt: skip
        if reason := self.space.refusal(candidate):
            return Refusal(None, "space", (), reason)
        if self.source is not None and self.source.command is not None:
            return self._unsaid(candidate)  # whatever else rules it out, its own program says
        return check.refused(candidate, context)
