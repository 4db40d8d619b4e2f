"""How others search: loops over `Session.probe`, as functions of what each probe came to.

accelerate and Lightning are driven as installed, with a training function that asks the session and raises the
out-of-memory error that they recognise, and so is Optuna's sampler. The others are written anew from their
documentation and public source. All but Optuna know the micro-batch alone: they search on the plain bf16 rung. What a
search delivers is a candidate, or None where it gave up.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from autotune.candidate import Candidate
from autotune.options import Limits, StrategyName
from autotune.outcome import Ok, Oom, Outcome
from autotune.search.context import SearchContext
from autotune.search.selection import rank
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Try, decide
from autotune.trial import History, Trial

TRIALS = 20
"""Probes of a search that knows no end of its own (Optuna alone, random)."""
DEEPSPEED_GAIN = 0.05
"""By how much a larger micro-batch has to be faster for DeepSpeed to go on (`METRIC_PERCENT_DIFF_CONST`)."""
REFUSED = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
"""torch's words for a refused allocation on a processor, by which accelerate and Lightning know one."""


@dataclass
class Tried:
    """One probe of a search."""

    candidate: Candidate
    outcome: Outcome
    ended: float
    """Seconds since the search began."""


class Session(Protocol):
    """What a search asks, and what keeps its account."""

    tried: list[Tried]
    elapsed: float
    """Seconds so far, every start included."""

    @property
    def context(self) -> SearchContext:
        """What bounds the search."""
        ...

    @property
    def plain(self) -> Candidate:
        """The rung that searches of the micro-batch alone stay on, at micro-batch 1."""
        ...

    def probe(self, candidate: Candidate, steps: int | None = None) -> Outcome:
        """Train a candidate for so many optimizer steps (None: until its speed is known); return what came of it."""
        ...

    def seconds_of(self, candidate: Candidate) -> float:
        """Return the seconds of a global step of a candidate that trained."""
        ...


Search = Callable[[Session], Candidate | None]


@dataclass(frozen=True)
class Peer:
    """A search of somebody else's."""

    name: str
    search: Search
    how: str
    """`as installed`, or `algorithm`: written anew from what was published."""
    in_process: bool
    """Whether all of its trials run in one process, which starts and imports once."""
    keeps_batch: bool
    """Whether it makes up the global batch by accumulation itself; else what it delivers is the whole batch."""
    keeps_model: bool = False
    """Whether trials go on with one model, which is built once."""
    warm: bool = False
    """Whether its processes are forked from one that has imported the libraries, as ours are; else each imports."""
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Lightning:
    """Lightning's `Tuner.scale_batch_size` on a model without parameters to speak of, whose steps ask the session.

    It knows no global batch, so a batch beyond it is refused as if memory had ended, at no cost. The data set has more
    rows than that: where the batch that runs out of memory is as large as the data set, 2.6.6 tries it for ever.
    """

    mode: str

    def __call__(self, session: Session) -> Candidate | None:
        import logging
        import warnings

        import lightning.pytorch as pl
        import torch
        from lightning.pytorch.tuner import Tuner

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning")
        limit = session.context.batches(session.plain).limit

        class Asking(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.batch_size = 2  # Lightning's own first trial
                self.layer = torch.nn.Linear(1, 1)

            def train_dataloader(self) -> Any:
                return torch.utils.data.DataLoader(torch.zeros(64 * limit, 1), batch_size=self.batch_size)

            def on_train_start(self) -> None:
                if self.batch_size > limit:
                    raise RuntimeError(REFUSED)
                ask(session, self.batch_size, steps=3)  # `steps_per_trial`

            def training_step(self, batch: Any, _: int) -> Any:
                return self.layer(batch).sum()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.0)

        with tempfile.TemporaryDirectory() as folder:
            trainer = pl.Trainer(
                accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False, default_root_dir=folder, max_epochs=1,
            )  # fmt: skip
            asking = Asking()
            try:
                found = Tuner(trainer).scale_batch_size(asking, mode=self.mode)
            except ValueError:
                if asking.batch_size > 0:
                    raise
                found = None  # where one sample does not fit, 2.6.6 goes on to none, which its loader refuses
        return None if found is None else session.plain.at(found)


def ask(session: Session, micro_batch: int, steps: int | None) -> None:
    """Probe the plain rung. Raises the RuntimeError of a refused allocation where it runs out of memory."""
    outcome = session.probe(session.plain.at(micro_batch), steps)
    if isinstance(outcome, Oom):
        raise RuntimeError(REFUSED)
    if not isinstance(outcome, Ok):
        raise RuntimeError(f"ended with {outcome.kind}")


def accelerate(session: Session) -> Candidate | None:
    """Drive accelerate's `find_executable_batch_size`, from the whole global batch; it takes a tenth off."""
    from accelerate.utils import find_executable_batch_size

    start = session.context.batches(session.plain).limit

    @find_executable_batch_size(starting_batch_size=start)  # type: ignore[untyped-decorator]  # not followed
    def train(batch_size: int) -> int:
        ask(session, batch_size, steps=2)  # an OOM can come as late as the optimizer's second step
        return batch_size

    try:
        return session.plain.at(train())
    except RuntimeError:  # "No executable batch size found, reached zero."
        return None


def composer(session: Session) -> Candidate | None:
    """Follow Composer's automatic microbatching: the whole batch at once, halved on each OOM."""
    size = session.context.batches(session.plain).limit
    while True:
        if isinstance(session.probe(session.plain.at(size), steps=1), Ok):
            return session.plain.at(size)
        if size == 1:
            return None
        size = max(1, size // 2)


def ludwig(session: Session) -> Candidate | None:
    """Follow Ludwig's batch size tuner: from 2 doubled for five steps each, until the speed falls or memory ends."""
    limit = session.context.batches(session.plain).limit
    best, fastest, size = 2, 0.0, 2
    while size <= limit:
        outcome = session.probe(session.plain.at(size), steps=5)
        if not isinstance(outcome, Ok):
            break
        timing = outcome.timing
        assert timing is not None
        speed = size / (timing.last_micro_step.mean + timing.optimizer_step.mean)
        if speed < fastest:
            break
        best, fastest, size = size, speed, 2 * size
    return session.plain.at(min(best, limit))


class _DeepSpeed:
    """DeepSpeed Autotuning's published algorithm, as its `fast` mode goes on one device: ZeRO stage 0 alone.

    On one device the stages shard nothing, so the others would measure the same once more. The model's profile is a run
    at micro-batch 1. DeepSpeed's own program is never run here: it ends processes by name (`pkill`, `pdsh`).
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.speeds: dict[int, float] = {}
        """Samples a second of each micro-batch that was tried, at the global batch; 0 where it did not train."""
        self.limit = session.context.batches(session.plain).limit

    def run(self, size: int) -> float:
        """Run an experiment, in a process of its own; one that was run before is not repeated."""
        if size not in self.speeds:
            candidate = self.session.plain.at(size)
            trained = isinstance(self.session.probe(candidate, steps=5), Ok)
            self.speeds[size] = self.limit / self.session.seconds_of(candidate) if trained else 0.0
        return self.speeds[size]

    def search(self) -> Candidate | None:
        """Find the largest micro-batch, try three sizes up to it, then smaller ones than the largest."""
        profile = self.session.probe(self.session.plain.at(1), steps=2)
        facts = self.session.context.model
        assert facts is not None
        if not isinstance(profile, Ok):
            return None
        activations = max(1, profile.memory.breakdown.activations)
        state = 16 * facts.trainable_parameters  # fp32: parameters, gradients, two moments
        free = profile.memory.budget - profile.memory.baseline - state
        calculated = min(self.limit, free // activations)
        if calculated < 1 or not self.run(1):
            return None
        largest = self.largest(calculated)
        sizes = self.sizes(largest)
        for size in sizes:
            self.run(size)
        self.descend(sizes[-2] + 1 if len(sizes) > 1 else 1, largest)
        best = max(self.speeds, key=lambda size: (self.speeds[size], size))
        return self.session.plain.at(best)

    def largest(self, calculated: int) -> int:
        """Return the largest micro-batch that trains: near the calculated one, else by bisection."""
        for size in (math.ceil(1.05 * calculated), calculated, int(0.95 * calculated)):
            if not 1 <= size <= self.limit:
                continue
            if size in self.speeds or self.run(size):
                return size
        low, high, before = 1, calculated, self.speeds[1]
        while low <= high:
            middle = (low + high) // 2
            if self.speeds.get(middle):
                low = middle + 1
                continue
            speed = self.run(middle)
            if not speed:
                high = middle - 1
                continue
            low = middle + 1
            if (speed - before) / before < DEEPSPEED_GAIN:
                break
            before = speed
        return max(1, low - 1)

    def sizes(self, largest: int) -> list[int]:
        """Return about three sizes at equal distances, without those of the largest's accumulation."""
        stride = max(1, largest // 3)
        least = self.limit // largest
        return [*(size for size in range(1, largest, stride) if self.limit // size != least), largest]

    def descend(self, smallest: int, largest: int) -> None:
        """Try smaller sizes of the same accumulation as long as each is faster than the last."""
        stride = max(1, (largest - smallest) // 3)
        best = self.speeds[largest]
        for size in reversed(range(smallest, largest, stride)):
            speed = self.run(size)
            if speed <= best * (1 + DEEPSPEED_GAIN):
                break
            best = speed


@dataclass(frozen=True)
class _Blind:
    """One of our strategies without predictions, asked until it is done or has had its probes.

    `optuna` is then Optuna's own sampler over the space and nothing else: after the plain rung it draws, and memory is
    a constraint.
    """

    strategy: StrategyName
    most: int

    def __call__(self, session: Session) -> Candidate | None:
        context = replace(session.context, limits=Limits(max_probes=self.most))
        history: History = ()
        while isinstance(decision := decide(STRATEGIES[self.strategy], history, context), Try):
            outcome = session.probe(decision.candidate)
            history += (
                Trial(
                    number=len(history) + 1, candidate=decision.candidate, node=decision.node, why=decision.why,
                    outcome=outcome, seconds=0.0,
                ),
            )  # fmt: skip
        ranked = rank(history, context)
        return ranked[0].trial.candidate if ranked else None


def deepspeed(session: Session) -> Candidate | None:
    """Follow DeepSpeed Autotuning's published algorithm."""
    return _DeepSpeed(session).search()


PEERS: tuple[Peer, ...] = (
    Peer("accelerate", accelerate, "as installed", in_process=True, keeps_batch=False, packages=("accelerate",)),
    Peer("Lightning power", _Lightning("power"), "as installed", in_process=True, keeps_batch=False, keeps_model=True,
         packages=("lightning",)),
    Peer("Lightning binsearch", _Lightning("binsearch"), "as installed", in_process=True, keeps_batch=False,
         keeps_model=True, packages=("lightning",)),
    Peer("DeepSpeed Autotuning", deepspeed, "algorithm", in_process=False, keeps_batch=True),
    Peer("Composer", composer, "algorithm", in_process=True, keeps_batch=True, keeps_model=True),
    Peer("Ludwig", ludwig, "algorithm", in_process=True, keeps_batch=False, keeps_model=True),
    Peer("random", _Blind("random", TRIALS), "ours, blind", in_process=False, keeps_batch=True, warm=True),
    Peer("grid", _Blind("grid", 100_000), "ours, blind", in_process=False, keeps_batch=True, warm=True),
    Peer("Optuna TPE alone", _Blind("optuna", TRIALS), "as installed", in_process=False, keeps_batch=True),
)  # fmt: skip
