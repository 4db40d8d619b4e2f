"""How a search scales: one proposal among 100,000 candidates, a journal of 50,000 lines, and resuming mid-way.

    python -m benchmarks.search_scale [--strategy guided]      every strategy, unless one is named

Nothing is trained: outcomes and traces are made of arithmetic, and the speed of each rung is predicted a little
wrongly. A proposal is timed after 100 trials, with a memory model that has a trace of every rung. The first of a search
finds the legal rungs and prices them, which is kept: it is timed apart, and the target is for those that follow, each
after other trials. The journal is read as a resumed run reads it, seals and order checked, to its history. A search is
then cut at several points and continued from what JSON holds of its history, with nothing kept.

Targets: a proposal in at most 0.5 s, the journal in at most 1 s, and the identical continuation from every cut.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

from rich.console import Console
from rich.table import Table

from autotune.candidate import AXES, Candidate, choices
from autotune.errors import InputError
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.options import StrategyName
from autotune.outcome import StepTiming
from autotune.run.events import Asked, Entry, Finished, Inspected, Opened, Started
from autotune.run.journal import read_record
from autotune.run.record import Record
from autotune.run.sealed_lines import sealed
from autotune.search.comparison import MARGIN
from autotune.search.context import SearchContext
from autotune.search.selection import rank
from autotune.search.shipped import load_space
from autotune.search.space import Space
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Done, Strategy, Try, decide
from autotune.site import MachineFacts, Site
from autotune.specs import DeviceFacts, DeviceSpec, Goal, ModelSpec, RunSpec
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.testing.grids import FACTS
from autotune.trial import History, Trial
from autotune.units import MIB
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, verdict

PROPOSAL, JOURNAL = 0.5, 1.0
"""Targets, in seconds."""
CANDIDATES, LINES, TRIALS, PROBES = 100_000, 50_000, 100, 24
"""Of the whole case: candidates, lines of a journal, trials behind a proposal, probes of a search that is cut."""
AXES_TRIED = (
    "precision",
    "checkpointing",
    "loss",
    "activation_offload",
    "offload",
    "optimizer_kernel",
    "attention",
)
REPEATS = 5
"""Of a time the least counts: another process can only add to it."""
DEVICE = Arithmetic(budget=6000).in_units(MIB)
OFF = 0.1
"""Standard deviation of the logarithm by which each rung's speed is predicted wrongly: with less, nothing is left to
look for after so many trials, and a proposal is made at once."""


@dataclass(frozen=True)
class Mistaken:
    """What is predicted of the device's speed."""

    device: Arithmetic

    def timing(self, candidate: Candidate) -> StepTiming:
        """Return the parts of a global step, the micro-step's off by the same factor at every micro-batch."""
        off, device = math.exp(OFF * _drawn(candidate.rung().key())), self.device
        wrong = replace(device, overhead=off * device.overhead, per_sample=off * device.per_sample)
        return wrong.timing(candidate)


@cache
def _drawn(rung: str) -> float:
    return Random(rung).gauss(0.0, 1.0)


def wide_context(samples: int, rungs: int) -> tuple[SearchContext, list[Candidate], int]:
    """Return a search of a wide space, so many of its rungs, and how many candidates it holds."""
    minimal = load_space("minimal")
    axes: dict[str, tuple[Any, ...]] = {}
    for axis in AXES_TRIED:
        values = tuple(choices(axis)) if axis in AXES else ()
        axes[axis] = (
            *minimal.axes.get(axis, ()),
            *(one for one in values if one not in minimal.axes.get(axis, ())),
        )
    space = Space.load({**minimal.model_dump(mode="json"), "axes": axes}, "wide")
    goal = Goal.model_validate({"target": f"{samples} samples", "seq_len": 64, "headroom": 0.0})
    context = SearchContext(
        space=space, base=Candidate(), goal=goal, tokens_per_sample=64, budget=DEVICE.budget
    )
    found = [rung for _, rung in zip(range(rungs), context.rungs(), strict=False)]
    sizes = len(context.batches(Candidate()).useful)
    traces = {rung.key(): timeline(DEVICE, rung) for rung in context.rungs()}
    predictor = Predictor(traces, DeviceOverhead("cpu", 0, 0))
    return replace(context, predictor=predictor, speed=Mistaken(DEVICE)), found, sizes * len(traces)


def trials(rungs: list[Candidate], context: SearchContext, count: int) -> History:
    """Return trials of drawn candidates, with the outcomes of arithmetic, and the fastest last."""
    random, sizes = Random(0), context.batches(Candidate()).useful
    drawn = dict.fromkeys(random.choice(rungs).at(random.choice(sizes)) for _ in range(3 * count))
    history = [
        Trial(number=number, candidate=one, node="drawn", why="", outcome=DEVICE.outcome(one), seconds=1.0)
        for number, one in enumerate(list(drawn)[:count], start=1)
    ]
    best, *slower = sorted(rank(tuple(history), context), key=lambda score: score.seconds)
    alike = {score.trial.number for score in slower if score.seconds * (1 - MARGIN) < best.seconds}
    before = [trial for trial in history if trial is not best.trial and trial.number not in alike]
    return _numbered([*before, best.trial])


def others(history: History, count: int) -> list[History]:
    """Return so many histories with the same trials in other orders, the last one still the last."""
    *before, last = history
    return [_numbered([*before[first:], *before[:first], last]) for first in range(1, count + 1)]


def _numbered(history: Iterable[Trial]) -> History:
    return tuple(trial.model_copy(update={"number": number}) for number, trial in enumerate(history, start=1))


class Proposals(NamedTuple):
    """Seconds of a strategy's proposals after as many trials."""

    first: float
    """With nothing kept from before."""
    following: float
    """The least of some, each after other trials."""
    decision: str
    """What it proposed: `Try`, `TraceFirst` or `Done`."""


def proposals(strategy: Strategy, context: SearchContext, history: History) -> Proposals:
    """Time the first proposal of a search and some that follow."""
    taken, decisions = [], []
    for trials in (history, *others(history, REPEATS)):
        began = time.perf_counter()
        decisions.append(strategy.propose(trials, context))
        taken.append(time.perf_counter() - began)
    return Proposals(taken[0], min(taken[1:]), type(decisions[-1]).__name__)


def least(work: Callable[[], Any]) -> float:
    """Return the least seconds of a few repetitions."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - began)
        del result  # a run that is resumed keeps it: that takes no part of the time
    return min(taken)


def journal_lines(lines: int) -> Iterator[Entry]:
    """Yield what a run of as many lines would have written: probes, most of which trained."""
    model = ModelSpec(name="arithmetic", source="config", config={})
    space = load_space("minimal")
    goal = Goal.model_validate({"target": "64 samples", "seq_len": 64})
    device = DeviceSpec(kind="cpu", budget=DEVICE.budget)
    spec = RunSpec(model=model, device=device, goal=goal, space=space.model_dump(mode="json"))
    yield Asked.of(spec)
    facts = DeviceFacts(
        kind="cpu", name="arithmetic", torch_name="cpu", budget=DEVICE.budget, total=DEVICE.budget
    )
    yield Opened(version="0", site=Site(device=facts, machine=MachineFacts()), time="")
    yield Inspected(facts=FACTS, baseline=0, budget=DEVICE.budget)
    for number in range(1, (lines - 3) // 2 + 1):
        candidate = Candidate(micro_batch=number)
        yield Started(number=number, candidate=candidate, node="grow", why="made", time="")
        outcome = DEVICE.outcome(Candidate(micro_batch=1 + number % 8))
        yield Finished(number=number, outcome=outcome, seconds=1.0)


def write_journal(path: Path, lines: int) -> int:
    """Write a journal at once, sealed as a tuner seals it, and return how many lines it has."""
    last, count = b"", 0
    with path.open("wb") as file:
        for entry in journal_lines(lines):
            last = sealed(entry.model_dump_json().encode(), last)
            file.write(last + b"\n")
            count += 1
    return count


def replayed(path: Path) -> tuple[Record, History]:
    """Read a journal to its history, with the record that a run which goes on keeps: to free it takes no part."""
    found = read_record(path)
    return found, found.history


def continued(name: StrategyName, context: SearchContext, history: History, probes: int) -> History:
    """Go on with a search for so many probes."""
    while len(history) < probes:
        decision = decide(STRATEGIES[name], history, context)
        if isinstance(decision, Done):
            break
        assert isinstance(decision, Try), "everything has been traced"
        history += (
            Trial(
                number=len(history) + 1, candidate=decision.candidate, node=decision.node, why=decision.why,
                outcome=DEVICE.outcome(decision.candidate), seconds=1.0,
            ),
        )  # fmt: skip
    return history


def anew(context: SearchContext) -> SearchContext:
    """Return a context with the same traces, of which nothing was computed yet."""
    assert context.predictor is not None
    return replace(
        context, predictor=Predictor(context.predictor.timelines.by_key, context.predictor.overhead)
    )


def resumes(name: StrategyName, context: SearchContext, probes: int) -> bool:
    """Tell whether a search that is cut at any of some points goes on as if it had not been."""
    whole = continued(name, context, (), probes)
    for cut in {len(whole) // 4, len(whole) // 2, max(0, len(whole) - 1)}:
        kept = tuple(Trial.model_validate_json(trial.model_dump_json()) for trial in whole[:cut])
        if continued(name, anew(context), kept, probes) != whole:
            return False
    return True


def main() -> int:
    """Time, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strategy", choices=get_args(StrategyName), help="one strategy; all without")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    lines, probes = (500, 6) if options.smallest else (LINES, PROBES)
    context, rungs, count = wide_context(samples=16 if options.smallest else 1024, rungs=400)
    history = trials(rungs, context, 10 if options.smallest else TRIALS)
    console, rows, missed = Console(width=140), [], []
    table = Table("strategy", f"a proposal among {count:,}", "the first", "is", "goes on as if uncut")
    for name in [options.strategy] if options.strategy else STRATEGIES:
        timed = proposals(STRATEGIES[name], anew(context), history)
        same = resumes(name, context, probes)
        row = {"strategy": name, "candidates": count, "seconds": timed.following, "first": timed.first}
        rows.append({**row, "decision": timed.decision, "resumes": same})
        table.add_row(name, f"{timed.following:.3f} s", f"{timed.first:.2f} s", timed.decision, str(same))
        if timed.following > PROPOSAL and not options.smallest:
            missed.append(f"{name}: a proposal in at most {PROPOSAL:g} s: {timed.following:.2f} s")
        if not same:
            missed.append(f"{name}: the identical continuation from every cut")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        written = write_journal(path, lines)
        seconds = least(lambda: replayed(path))
        size = path.stat().st_size
    console.print(table)
    console.print(f"a journal of {written:,} lines ({size / MIB:.0f} MiB) is replayed in {seconds:.2f} s")
    if seconds > JOURNAL and not options.smallest:
        missed.append(f"a journal of {LINES:,} lines in at most {JOURNAL:g} s: {seconds:.2f} s")
    journal = {"lines": written, "bytes": size, "seconds": seconds}
    console.print(
        record(
            "search_scale", rows, options.out, smallest=options.smallest, journal=journal, trials=len(history)
        )
    )
    if not options.smallest and count < CANDIDATES:
        raise InputError(f"the space holds {count:,} candidates, and {CANDIDATES:,} were promised")
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
