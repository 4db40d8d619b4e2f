"""What a number of checkpointed blocks is worth beside none and all, and whether to offload blocks instead. Predicted.

    python -m benchmarks.recompute_or_offload [--case llama-3.2-1b]

Each model is traced on a GPU that is not there, with chunked loss: plain, with all blocks checkpointed, with half of
them, and with activation offload. First table: guided search with any number of blocks, and with all or none, on each
GPU that the model's state fits in. Second table: what a block computes again against what its activations take to cross
the host link, each way, at the bandwidth that copies reach (`timing.machine`). The traces' transfers overlap with
compute; `hidden` are the blocks whose transfers do so altogether, and `at most` is what offloading these instead of
computing them again would save of a step. All times are the roofline's, of micro-batch 1.

Targets: with any number the configuration found is nowhere predicted slower than with all or none; and nowhere more
than the search's margin slower than the fastest of all numbers and micro-batches, each priced by itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from autotune.candidate import Candidate  # noqa: E402
from autotune.devices.hardware import Hardware, find_hardware  # noqa: E402
from autotune.devices.simulated import SimulatedDevice  # noqa: E402
from autotune.memory.fewest_checkpointed import with_checkpointed_blocks  # noqa: E402
from autotune.memory.predictor import Predictor  # noqa: E402
from autotune.models.resolve import resolve  # noqa: E402
from autotune.outcome import Ok, Oom, Outcome  # noqa: E402
from autotune.probe.protocol import ProbeRequest  # noqa: E402
from autotune.search.comparison import MARGIN  # noqa: E402
from autotune.search.context import SearchContext  # noqa: E402
from autotune.search.guided import Guided  # noqa: E402
from autotune.search.space import Space  # noqa: E402
from autotune.search.strategy import Done, TraceFirst  # noqa: E402
from autotune.site import MachineFacts, Site  # noqa: E402
from autotune.specs import Goal  # noqa: E402
from autotune.testing.arithmetic import ok  # noqa: E402
from autotune.testing.grids import FACTS  # noqa: E402
from autotune.timeline.timeline import Timeline  # noqa: E402
from autotune.timing.machine import Machine  # noqa: E402
from autotune.timing.roofline import busy  # noqa: E402
from autotune.timing.step_predictor import StepPredictor  # noqa: E402
from autotune.tracing.cache import TraceCache  # noqa: E402
from autotune.tracing.client import LocalTracer  # noqa: E402
from autotune.trial import History, Trial  # noqa: E402
from autotune.units import MIB  # noqa: E402
from benchmarks.recording import RESULTS, record  # noqa: E402
from benchmarks.verdict import SMALLEST, verdict  # noqa: E402

TRACING = 3600.0
"""Seconds after which a worker is given up."""
SLACK = 1.001
"""What counts as no slower: a search ends within its margin, and both end at the same place."""


class Case(NamedTuple):
    """A model, its length of sequences, its blocks, and the GPUs on which it is searched and priced."""

    model: str
    seq_len: int
    blocks: int
    searched: tuple[str, ...]
    priced: tuple[str, ...] = ("h100-pcie-80gb", "h100-sxm-80gb", "gh200-96gb")


CASES = {
    "gpt2-xl": Case("gpt2-xl", 1024, 48, ("a100-sxm-40gb", "h100-pcie-80gb", "h100-sxm-80gb", "gh200-96gb")),
    "llama-3.2-1b": Case("llama-3.2-1b", 32768, 16, ("h100-pcie-80gb", "h100-sxm-80gb", "gh200-96gb")),
    "llama-3.1-8b": Case("llama-3.1-8b", 8192, 32, ()),
}
TINY = Case("tiny-gpt2", 64, 2, ("h100-sxm-80gb",), ("h100-sxm-80gb",))
BASE = Candidate(loss="chunked")


def some(rung: Candidate, **changes: object) -> Candidate:
    """Return a rung with other values."""
    return rung.model_copy(update=changes)


FULL = some(BASE, checkpointing="full")
OFFLOADED = some(BASE, activation_offload=True)


def traces(case: Case) -> dict[Candidate, Timeline]:
    """Return the four traces of a case."""
    rungs = [BASE, FULL, some(FULL, checkpointed_blocks=case.blocks // 2), OFFLOADED]
    request = ProbeRequest(
        kind="trace", model=resolve(case.model, base=ROOT), candidate=rungs[0], also=tuple(rungs[1:]),
        seq_len=case.seq_len, accumulation_steps=2, device="cuda:0", world_size=1, budget=0, seed=0, sample_seconds=1.0,
        sample_steps=2, folder=str(ROOT),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        tracer = LocalTracer(TraceCache(Path(folder) / "cache"))
        found = tracer.trace(request, Path(folder) / "workers", timeout=TRACING)
    known = {rung: trace.timeline for rung, trace in found.items() if trace.timeline is not None}
    assert len(known) == len(rungs), [trace.reason for trace in found.values()]
    return known


def space(numbers: str) -> Space:
    """Return a space of checkpointing alone."""
    grow = {"title": "grow", "grow": {"factor": 2, "resolution": 0.1}}
    nodes = {
        "baseline": {
            "title": "plain", "set": {"checkpointing": "none"},
            "next": {"ok": "grow", "oom": "checkpointed", "oom_optimizer": "checkpointed", "oom_build": "checkpointed"},
        },
        "checkpointed": {"title": "checkpointed", "set": {"checkpointing": "full"}, "next": {"ok": "grow"}},
        "grow": grow,
    }  # fmt: skip
    axes = {"checkpointing": ["none", "full"], "checkpointed_blocks": [numbers]}
    parts = {"name": "checkpointing", "description": "Checkpointing alone.", "axes": axes}
    return Space.load({**parts, "graph": {"start": "baseline", "nodes": nodes}}, "checkpointing")


class Pricing:
    """What the candidates of a case are predicted to take on a GPU, by the traces so far."""

    def __init__(
        self, case: Case, hardware: Hardware, known: dict[Candidate, Timeline], numbers: str
    ) -> None:
        """`numbers` are those of checkpointed blocks that the space has: `any` or `all`."""
        goal = Goal.model_validate({"target": "4M", "seq_len": case.seq_len})
        device = SimulatedDevice(hardware).facts()
        self.context = SearchContext(
            space=space(numbers), base=BASE, goal=goal, tokens_per_sample=case.seq_len, budget=device.budget,
            site=Site(device=device, machine=MachineFacts()), model=FACTS.model_copy(update={"blocks": case.blocks}),
        )  # fmt: skip
        self.case, self.known = case, known
        self._machine = Machine.of(hardware)
        self.predictor = Predictor({}, hardware.overhead(gpus=1), self._accumulating)

    def trace(self, rungs: Iterable[Candidate]) -> None:
        """Take the traces of rungs."""
        self.predictor = self.predictor.with_timelines({rung: self.known[rung] for rung in rungs})

    @property
    def speed(self) -> StepPredictor:
        """What is predicted of time by the traces so far."""
        return StepPredictor(self.predictor, self._machine, self._accumulating)

    def tokens_per_second(self, candidate: Candidate) -> float:
        """Return what a candidate reaches at the global batch."""
        timing = self.speed.timing(candidate)
        assert timing is not None, "only what is priced is asked for"
        steps = self.context.batches(candidate).accumulation(candidate.micro_batch).steps
        return steps * candidate.micro_batch * self.case.seq_len / timing.global_step(steps)

    def _accumulating(self, candidate: Candidate) -> bool:
        return self.context.batches(candidate).accumulation(candidate.micro_batch).steps > 1


def search(
    case: Case, hardware: Hardware, known: dict[Candidate, Timeline], numbers: str
) -> tuple[Candidate, float, int] | None:
    """Return what guided search chooses, its tokens/s and its probes; None where nothing fits."""
    pricing = Pricing(case, hardware, known, numbers)
    pricing.trace((BASE, FULL))
    context = pricing.context
    history: History = ()
    while True:
        decision = Guided().propose(history, context.informed(pricing.predictor, pricing.speed))
        if isinstance(decision, Done):
            break
        if isinstance(decision, TraceFirst):
            pricing.trace(decision.rungs)
            continue
        bounds, timing = (
            pricing.predictor.bounds(decision.candidate),
            pricing.speed.timing(decision.candidate),
        )
        assert bounds is not None
        assert timing is not None
        outcome: Outcome = Oom(phase="backward", requested=0, free=0)
        if bounds.mean <= context.budget:
            outcome = ok(round(bounds.mean), budget=context.budget).model_copy(update={"timing": timing})
        history += (
            Trial(
                number=len(history) + 1, candidate=decision.candidate, node=decision.node, why=decision.why,
                outcome=outcome, seconds=1.0,
            ),
        )  # fmt: skip
    fitting = [
        trial.candidate
        for trial in history
        if isinstance(trial.outcome, Ok) and context.fits(trial.outcome.memory)
    ]
    if not fitting:
        return None
    best = max(fitting, key=pricing.tokens_per_second)
    return best, pricing.tokens_per_second(best), len(history)


def fastest(
    case: Case, hardware: Hardware, known: dict[Candidate, Timeline]
) -> tuple[Candidate, float] | None:
    """Return the fastest of all numbers of blocks at all useful micro-batches that fit, and its tokens/s."""
    pricing = Pricing(case, hardware, known, "any")
    pricing.trace(rung for rung in known if rung != OFFLOADED)
    found: dict[Candidate, float] = {}
    for count in range(case.blocks + 1):
        rung = with_checkpointed_blocks(FULL, count, case.blocks)
        useful = pricing.context.batches(rung).useful
        most = pricing.predictor.largest(rung, pricing.context.usable, useful) or 0
        found |= {
            rung.at(size): pricing.tokens_per_second(rung.at(size))
            for size in useful[: bisect_right(useful, most)]
        }
    best = max(found, key=found.__getitem__, default=None)
    return None if best is None else (best, found[best])


def told(candidate: Candidate, case: Case) -> str:
    """Return how many blocks are checkpointed of how many, and the micro-batch."""
    count: int | str = candidate.checkpointed_blocks
    if candidate.checkpointing == "none":
        count = 0
    elif count == "all":
        count = case.blocks
    return f"{count} of {case.blocks} at {candidate.micro_batch}"


def searched(name: str, case: Case, known: dict[Candidate, Timeline]) -> Iterator[dict[str, Any]]:
    """Yield a row for each GPU on which something fits: what both searches found."""
    for gpu in case.searched:
        hardware = find_hardware(gpu)
        found = {numbers: search(case, hardware, known, numbers) for numbers in ("any", "all")}
        some_, whole, best = found["any"], found["all"], fastest(case, hardware, known)
        if some_ is None or whole is None or best is None:
            continue
        yield {
            "table": "number of blocks", "case": name, "seq_len": case.seq_len, "gpu": gpu,
            "any": told(some_[0], case), "any_tokens_per_second": some_[1], "any_probes": some_[2],
            "all_or_none": told(whole[0], case),
            "all_or_none_tokens_per_second": whole[1], "all_or_none_probes": whole[2],
            "faster": some_[1] / whole[1] - 1,
            "fastest": told(best[0], case), "fastest_tokens_per_second": best[1], "share": some_[1] / best[1],
        }  # fmt: skip


def priced(name: str, case: Case, known: dict[Candidate, Timeline]) -> Iterator[dict[str, Any]]:
    """Yield a row for each GPU: what a block takes to compute again, and to be moved."""
    for gpu in case.priced:
        machine = Machine.of(find_hardware(gpu))

        def engines(rung: Candidate, phase: Any, machine: Machine = machine) -> Any:
            work = known[rung].work
            assert work is not None, "the trace knows its work"
            return busy(work.of(phase, 1), machine)

        forward, backward = engines(OFFLOADED, "forward"), engines(OFFLOADED, "backward")
        again = engines(FULL, "backward").compute - engines(BASE, "backward").compute
        plain = [engines(BASE, phase) for phase in ("forward", "backward")]
        step = sum(part.seconds for part in plain)
        moving = max(forward.download, backward.upload)
        hidden = min(
            1.0,
            plain[0].compute / max(forward.download, 1e-12),
            plain[1].compute / max(backward.upload, 1e-12),
        )
        yield {
            "table": "recompute or offload", "case": name, "seq_len": case.seq_len, "gpu": gpu,
            "moved_mib_per_block": forward.download * machine.host_link / case.blocks / MIB,
            "recompute_ms_per_block": 1e3 * again / case.blocks, "move_ms_per_block": 1e3 * moving / case.blocks,
            "ratio": moving / again, "hidden_blocks": int(hidden * case.blocks),
            "at_most": int(hidden * case.blocks) / case.blocks * again / (step + again),
            "offloaded_step": (forward.seconds + backward.seconds) / step, "recomputed_step": (step + again) / step,
        }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    """Print both tables."""
    console = Console(width=190)
    first = Table(
        "model",
        "length",
        "GPU",
        "any number",
        "tokens/s",
        "all or none",
        "tokens/s",
        "faster",
        "of the fastest",
    )
    second = Table(
        "model", "length", "GPU", "MiB a block", "recompute", "move", "ratio", "hidden", "at most",
        "step, all recomputed", "step, all offloaded",
    )  # fmt: skip
    for row in rows:
        start = (row["case"], str(row["seq_len"]), row["gpu"])
        if row["table"] == "number of blocks":
            first.add_row(
                *start, row["any"], f"{row['any_tokens_per_second']:,.0f}", row["all_or_none"],
                f"{row['all_or_none_tokens_per_second']:,.0f}", f"{row['faster']:+.1%}",
                f"{row['share']:.1%} ({row['fastest']})",
            )  # fmt: skip
        else:
            second.add_row(
                *start, f"{row['moved_mib_per_block']:,.0f}", f"{row['recompute_ms_per_block']:.2f} ms",
                f"{row['move_ms_per_block']:.2f} ms", f"{row['ratio']:.1f}", str(row["hidden_blocks"]),
                f"{row['at_most']:.1%}", f"{row['recomputed_step']:.2f}", f"{row['offloaded_step']:.2f}",
            )  # fmt: skip
    for table in (first, second):
        console.print(table)


def main() -> int:
    """Trace, search and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    cases = {"tiny-gpt2": TINY} if options.smallest else {name: CASES[name] for name in options.case or CASES}
    rows: list[dict[str, Any]] = []
    for name, case in cases.items():
        known = traces(case)
        rows += [*searched(name, case, known), *priced(name, case, known)]
    show(rows)
    record("recompute_or_offload", rows, options.out, smallest=options.smallest, cases=options.case)
    numbers = [row for row in rows if row["table"] == "number of blocks"]
    missed = [
        f"{row['case']} on {row['gpu']} no slower with any number: {row['faster']:+.1%}"
        for row in numbers
        if row["faster"] < 1 / SLACK - 1
    ]
    missed += [
        f"{row['case']} on {row['gpu']} at most {MARGIN:.0%} slower than the fastest number: {row['share']:.1%}"
        for row in numbers
        if row["share"] < 1 - MARGIN
    ]
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
