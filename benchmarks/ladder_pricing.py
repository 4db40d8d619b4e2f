"""Price every legal rung of a large model's ladder on a GPU that is not there, with an empty cache.

    python -m benchmarks.ladder_pricing [--case gpt2-xl] [--case llama-3.1-8b] [--drawn 30] [--seed 0]

The ladder is every rung of the space `default` (on several GPUs with the axis `SHARDINGS` besides) that space and
techniques allow, in bf16. Each is traced or composed of others' traces (`autotune.tracing`), then priced, in a process
for each core: the largest micro-batch that fits, and there the roofline's time of a global step of 4M tokens. Seconds
are of all that, start of workers and imports included; processor seconds are those of all processes, which a busy
machine does not change, and apart those of the tuner, which reads, composes, keeps and prices. MFU counts the plain
rung's own FLOPs of forward and backward. Then, not timed, rungs drawn at random are traced once more, alone and through
all blocks; compared are the bytes allocated and the seconds of a step, at micro-batches 1, 2 and 8 (at the only one
that a trace holds for, where it holds for one).
`--part N` prices the plain rung, N rungs drawn at random and what these can be composed of, and meets no target of
seconds.

Targets, on 2 cores: a ladder within 60 s, and every drawn rung within 0.5% of its own trace.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autotune.candidate import Candidate  # noqa: E402
from autotune.devices.hardware import Hardware, find_hardware  # noqa: E402
from autotune.devices.simulated import SimulatedDevice  # noqa: E402
from autotune.memory.predictor import Predictor  # noqa: E402
from autotune.models.resolve import resolve  # noqa: E402
from autotune.probe.protocol import ProbeRequest  # noqa: E402
from autotune.search.shipped import load_space  # noqa: E402
from autotune.techniques.axis import Context  # noqa: E402
from autotune.techniques.check import check  # noqa: E402
from autotune.timeline.timeline import Timeline  # noqa: E402
from autotune.timing.machine import Machine  # noqa: E402
from autotune.timing.roofline import step_time  # noqa: E402
from autotune.tracing.cache import TraceCache  # noqa: E402
from autotune.tracing.client import LocalTracer, Trace  # noqa: E402
from autotune.tracing.plan import plan  # noqa: E402
from benchmarks.recording import RESULTS, record  # noqa: E402
from benchmarks.verdict import SMALLEST, verdict  # noqa: E402

TOKENS = 4_000_000
"""Of a global step."""
SHARDINGS = ("ddp", "zero1", "zero2", "fsdp2")
LARGEST = 1024
LIMIT = 60.0
AGREEMENT = 0.005
TRACING = 3600.0
"""Seconds after which a worker is given up."""


class Case(NamedTuple):
    """A model, the GPU and how many of it."""

    model: str
    seq_len: int
    gpus: int
    gpu: str = "h100-80gb"


CASES = {"gpt2-xl": Case("gpt2-xl", 1024, 1), "llama-3.1-8b": Case("llama-3.1-8b", 2048, 8)}
TINY = Case("tiny-gpt2", 64, 1)


class Price(NamedTuple):
    """What a rung is predicted to reach at the largest micro-batch that fits."""

    micro_batch: int
    tokens_per_second: float


def ladder(case: Case, hardware: Hardware, axes: tuple[str, ...] | None = None) -> list[Candidate]:
    """Return every legal rung of the case, plain bf16 first; with `axes`, those that differ in these alone."""
    space = load_space("default")
    context = Context(accumulation_steps=2, world_size=case.gpus, device=SimulatedDevice(hardware).facts())
    values = {axis: space.values(axis) for axis in space.axes if axes is None or axis in axes}
    values["precision"] = values.get("precision", ("bf16",))[:1]
    values["sharding"] = ("none",) if case.gpus == 1 else SHARDINGS
    rungs = (
        Candidate(**dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values())
    )
    return [rung for rung in rungs if not check(rung, context) and not space.refusal(rung)]


def part(rungs: list[Candidate], count: int, seed: int) -> list[Candidate]:
    """Return the first rung, some drawn at random, and those that these can be composed of."""
    chosen = [rungs[0], *random.Random(seed).sample(rungs[1:], min(count, len(rungs) - 1))]
    planned = plan(rungs)
    wanted: set[Candidate] = set()
    while chosen:
        one = chosen.pop()
        wanted.add(one)
        chosen += [*planned.halves.get(one, ()), *planned.pieces.get(one, ())]
    return [rung for rung in rungs if rung in wanted]


def request(case: Case, candidates: list[Candidate]) -> ProbeRequest:
    """Return a request for the traces of candidates."""
    first, *rest = candidates
    return ProbeRequest(
        kind="trace", model=resolve(case.model, base=ROOT), candidate=first, also=tuple(rest), seq_len=case.seq_len,
        accumulation_steps=2, device="cuda:0", world_size=case.gpus, budget=0, seed=0, sample_seconds=1.0,
        sample_steps=2, folder=str(ROOT),
    )  # fmt: skip


def memory_model(known: Mapping[Candidate, Timeline], hardware: Hardware, case: Case) -> Predictor:
    """Return what a run knows of memory that has traced a ladder."""
    return Predictor({}, hardware.overhead(case.gpus), lambda _: True).with_timelines(known)


def price(
    rung: Candidate, timeline: Timeline, predictor: Predictor, hardware: Hardware, case: Case
) -> Price | None:
    """Return what the rung reaches; None where not even one sample fits."""
    if timeline.exact is None:
        largest = predictor.largest(rung, hardware.usable_bytes(), range(1, LARGEST + 1))
    else:
        bounds = predictor.bounds(rung.at(timeline.exact))
        largest = timeline.exact if bounds is not None and bounds.mean <= hardware.usable_bytes() else 0
    step = step_time(timeline, largest, Machine.of(hardware), True) if largest else None
    if step is None or not largest:
        return None
    tokens = largest * int(timeline.facts["tokens_per_sample"]) * rung.data_ranks(case.gpus)
    steps = -(-TOKENS // tokens)
    return Price(largest, steps * tokens / step.timing().global_step(steps))


_LADDER: dict[str, Any] = {}
"""What processes that price know of the ladder: they are forks."""


def _priced(rungs: list[Candidate]) -> tuple[dict[Candidate, Price], float]:
    """Return what rungs reach, and the processor seconds that this took."""
    began = time.process_time()
    known, predictor, hardware, case = (_LADDER[name] for name in ("known", "predictor", "hardware", "case"))
    found = {rung: price(rung, known[rung], predictor, hardware, case) for rung in rungs}
    return {rung: one for rung, one in found.items() if one}, time.process_time() - began


def prices_of(
    known: Mapping[Candidate, Timeline], hardware: Hardware, case: Case
) -> tuple[dict[Candidate, Price], float]:
    """Return what all rungs reach, priced by a process for each core, and the processor seconds of these."""
    predictor = memory_model(known, hardware, case)
    _LADDER.update(known=known, predictor=predictor, hardware=hardware, case=case)
    alike: dict[Candidate, list[Candidate]] = {}
    for rung in known:  # what has the same passes is simulated together
        alike.setdefault(rung.with_plainest_optimizer(), []).append(rung)
    prices: dict[Candidate, Price] = {}
    seconds = 0.0
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        for found, taken in pool.imap_unordered(_priced, alike.values()):
            prices |= found
            seconds += taken
        pool.close()
        pool.join()
    _LADDER.clear()
    return {rung: prices[rung] for rung in known if rung in prices}, seconds


def said(timeline: Timeline, hardware: Hardware) -> Iterator[float]:
    """Return what is compared of a rung's traces: bytes, and seconds of a step."""
    for size in filter(timeline.covers, (1, 2, 8)):
        yield float(timeline.allocated(size, accumulating=True))
        step = step_time(timeline, size, Machine.of(hardware), True)
        assert step is not None, "the trace knows its work"
        yield step.timing().global_step(2)


def own_trace(probe: ProbeRequest) -> Timeline:
    """Trace a rung alone, through all blocks."""
    from autotune.worker.tracing.trace import trace

    return trace(probe, short=False)


def furthest(
    case: Case, hardware: Hardware, drawn: list[Candidate], traces: dict[Candidate, Trace]
) -> list[float]:
    """Return of each drawn rung the largest share by which its trace is off its own one."""
    cores = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(min(cores, len(drawn)), maxtasksperchild=1) as pool:
        own = pool.map(own_trace, [request(case, [rung]) for rung in drawn], chunksize=1)
    off = []
    for rung, alone in zip(drawn, own, strict=True):
        shared = traces[rung].timeline
        assert shared is not None, "only priced rungs are drawn"
        pairs = zip(said(shared, hardware), said(alone, hardware), strict=True)
        off.append(max(abs(ours - theirs) / theirs for ours, theirs in pairs))
    return off


def processor_seconds() -> float:
    """Return what this process and those that it has waited for took of the processors so far."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Ladder(NamedTuple):
    """A ladder that was priced."""

    known: dict[Candidate, Timeline]
    traces: dict[Candidate, Trace]
    row: dict[str, Any]


def priced(name: str, case: Case, rungs: list[Candidate]) -> Ladder:
    """Price rungs of a case, and print what came of it."""
    hardware = find_hardware(case.gpu)
    with tempfile.TemporaryDirectory() as folder:
        began, taken, own = time.perf_counter(), processor_seconds(), time.process_time()
        tracer = LocalTracer(TraceCache(Path(folder) / "cache"))
        traces = tracer.trace(request(case, rungs), Path(folder) / "workers", timeout=TRACING)
        traced = time.perf_counter() - began
        known = {rung: trace.timeline for rung, trace in traces.items() if trace.timeline is not None}
        own = time.process_time() - own
        prices, pricing = prices_of(known, hardware, case)
        seconds, taken = time.perf_counter() - began, processor_seconds() - taken
        own += pricing
    plain = min(known, key=lambda rung: sum(value != getattr(Candidate(), name) for name, value in rung))
    work = known[plain].work
    assert work is not None, "the trace knows its work"
    flops = work.flops(2)
    tokens = 2 * int(known[plain].facts["tokens_per_sample"])
    peak = (hardware.bf16_tflops or 0.0) * 1e12 * case.gpus

    def mfu(rung: Candidate) -> float | None:
        found = prices.get(rung)
        model = (flops["forward"] + flops["backward"]) / tokens
        return found.tokens_per_second * model / peak if found and peak else None

    winner = max(prices, key=lambda rung: prices[rung].tokens_per_second)
    whole = sorted(
        {str(one.facts["blocks"]) for one in known.values() if str(one.facts["blocks"]).startswith("all")}
    )
    reasons = sorted({trace.reason for trace in traces.values() if trace.reason})
    row: dict[str, Any] = {
        "case": name, "gpus": case.gpus, "rungs": len(rungs), "seconds": seconds, "trace_seconds": traced,
        "processor_seconds": taken, "tuner_seconds": own,
        "traced": sum(trace.timeline is not None and not trace.composed for trace in traces.values()),
        "composed": sum(trace.composed for trace in traces.values()),
        "traced_passes_alone": sum(
            "optimizer_of" in one.facts for rung, one in known.items() if not traces[rung].composed
        ),
        "untraceable": len(rungs) - len(known),
        "for_one_micro_batch": sum(one.exact is not None for one in known.values()),
        "reasons": reasons,
        "through_all_blocks": sum(str(one.facts["blocks"]).startswith("all") for one in known.values()),
        "why_all_blocks": whole, "fitting": len(prices),
        "winner": winner.key(), "winner_micro_batch": prices[winner].micro_batch, "winner_mfu": mfu(winner),
        "plain": plain.key(), "plain_mfu": mfu(plain),
    }  # fmt: skip
    print(f"{name}: {row['rungs']} rungs in {seconds:.1f} s ({traced:.1f} s of traces), at most {LIMIT:g}")
    print(
        f"  {taken:.1f} s of processors ({own:.1f} of the tuner's), of which two have {2 * LIMIT:g} in that time"
    )
    passes = f"of {row['traced_passes_alone']} the passes alone"
    print(
        f"  traced {row['traced']} ({passes}), composed {row['composed']}, untraceable {row['untraceable']}"
    )
    print(f"  {row['for_one_micro_batch']} are known at one micro-batch alone")
    for reason in (*reasons, *whole):
        print(f"    {reason}")
    for title, rung in (("winner", winner), ("plain", plain)):
        share = mfu(rung)
        print(
            f"  {title}: MFU {'does not fit' if share is None else f'{share:.1%}'}: {rung.key()}", flush=True
        )
    return Ladder(known, traces, row)


def compare(name: str, case: Case, ladder: Ladder, drawn: int, seed: int) -> dict[str, Any]:
    """Draw rungs of a ladder, compare them with traces of their own, and return its row."""
    known = ladder.known
    chosen = random.Random(seed).sample(sorted(known, key=Candidate.key), min(drawn, len(known)))
    off = furthest(case, find_hardware(case.gpu), chosen, ladder.traces)
    composed = sum(ladder.traces[rung].composed for rung in chosen)
    allowed = f"{AGREEMENT:.1%} allowed"
    print(
        f"{name}: {len(off)} drawn ({composed} composed): at most {max(off):.3%} off a trace of their own, {allowed}"
    )
    return {**ladder.row, "drawn": len(off), "drawn_composed": composed, "furthest": max(off)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--drawn", type=int, default=30)
    parser.add_argument("--part", type=int, help="rungs of a part of the ladder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    if options.drawn < 1:
        parser.error("--drawn: at least one rung is compared with a trace of its own")
    if options.smallest:
        cases = {"tiny-gpt2": TINY}
        axes: tuple[str, ...] | None = ("checkpointing", "optimizer_kernel")
    else:
        cases = {name: CASES[name] for name in options.case or CASES}
        axes = None
    ladders = {}
    for name, case in cases.items():
        rungs = ladder(case, find_hardware(case.gpu), axes)
        if options.part is not None:
            whole = len(rungs)
            rungs = part(rungs, options.part, options.seed)
            print(f"{name}: {len(rungs)} of {whole} rungs")
        ladders[name] = priced(name, case, rungs)
    print("what follows is not timed", flush=True)
    drawn = 1 if options.smallest else options.drawn
    rows = [compare(name, case, ladders[name], drawn, options.seed) for name, case in cases.items()]
    if options.part is None:
        record(
            "ladder_pricing", rows, options.out, smallest=options.smallest, cases=options.case, seed=options.seed,
            limit=LIMIT,
        )  # fmt: skip
    missed = [f"{row['case']} drawn rungs within {AGREEMENT:.1%}: {row['furthest']:.2%}" for row in rows
              if row["furthest"] > AGREEMENT]  # fmt: skip
    if not options.smallest and options.part is None:
        missed += [
            f"{row['case']} within {LIMIT:g} s: {row['seconds']:.1f}"
            for row in rows
            if row["seconds"] > LIMIT
        ]
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
