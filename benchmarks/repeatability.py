"""How far apart two measurements of one candidate lie: probes and proofs of the same training, in a loop.

    python -m benchmarks.repeatability [--seconds 540] [--case tiny-gpt2:128:8 --case gpt2:64:1] [--target 0.10]

Each turn launches a probe and a proof of each case, cold, as a run does. From the steps that they recorded it computes
the ratio of the proof's speed to the probe's by three statistics (the plain mean, the trimmed mean that autotune uses,
the median), and how many proofs a run would refuse for their speed: by the plain rule (slower by more than the target)
and by the rule of `proof.judge` (slower by more than the target and what both intervals explain). `floor` is the
half-width of the 95% interval of one measurement, from all ratios of the quietest case: search/drift.py states it.

Targets, on a machine that does nothing else: no proof is refused by the rule; and of each case the median ratio by the
trimmed mean is within the tolerance of 1, as it is where probe and proof measure the same thing.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.confidence import t_quantile
from autotune.devices.find import find, resolve_device
from autotune.errors import AutotuneError
from autotune.executors.local import LocalExecutor
from autotune.models.resolve import resolve
from autotune.options import Limits
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest
from autotune.sampling import TRIMMED, summarize
from autotune.search.context import SearchContext
from autotune.search.drift import FLOOR, drift_of
from autotune.search.shipped import load_space
from autotune.specs import DeviceSpec, GlobalBatch, Goal
from autotune.trial import Trial
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

CASES = ("tiny-gpt2:128:8", "gpt2:64:1")
ACCUMULATION = 16
CONTEXT = SearchContext(
    space=load_space("minimal"), base=Candidate(), goal=Goal(target=GlobalBatch(amount=ACCUMULATION)),
    tokens_per_sample=1, budget=1,
)  # fmt: skip
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "trimmed mean": lambda values: summarize(values, TRIMMED).mean,
    "median": statistics.median,
}


def launch(executor: LocalExecutor, case: str, kind: str, seconds: float, folder: Path) -> Ok:
    """Run one probe or proof of a case (`model:seq_len:micro_batch`) and return what it measured."""
    model, seq_len, micro_batch = case.split(":")
    request = ProbeRequest.model_validate(
        {
            "kind": kind, "model": resolve(model, base=Path.cwd()),
            "candidate": Candidate(precision="bf16", micro_batch=int(micro_batch)), "seq_len": int(seq_len),
            "accumulation_steps": ACCUMULATION, "device": executor.describe().device.torch_name,
            "budget": executor.describe().device.budget, "seed": 0, "sample_seconds": seconds, "sample_steps": 20,
            "folder": "",
        }
    )  # fmt: skip
    answer = executor.run(request, folder, timeout=600.0).answer
    if not isinstance(answer, Ok):
        raise SystemExit(f"the {kind} of {case} did not train: {answer}")
    return answer


def compared(candidate: Candidate, probe: Ok, proof: Ok) -> dict[str, Any]:
    """Return the ratios of speeds (proof over probe), and what the intervals of both allow for."""
    timings = [ok.timing for ok in (probe, proof) if ok.timing is not None]
    first, again = (timing.global_step(ACCUMULATION) for timing in timings)
    shares = [timing.interval(ACCUMULATION) / timing.global_step(ACCUMULATION) for timing in timings]
    each = {
        name: _per_micro_step(probe, statistic) / _per_micro_step(proof, statistic)
        for name, statistic in STATISTICS.items()
    }
    # As a run of this one probe has it when its proof is judged.
    alone = Trial(number=1, candidate=candidate, node="", why="", outcome=probe, seconds=0.0)
    drift = drift_of((alone,), (), CONTEXT).share
    return {
        "ratio": first / again, "drift": drift, **each, "probe_seconds": first, "proof_seconds": again,
        "probe_interval": shares[0], "proof_interval": shares[1],
        "probe_steps": probe.step_seconds, "proof_steps": proof.step_seconds,
        "proof_micro_steps": proof.accumulation_steps,
    }  # fmt: skip


def _per_micro_step(ok: Ok, statistic: Callable[[Sequence[float]], float]) -> float:
    """Return seconds of a micro-step: the optimizer's, which a proof has fewer of, are taken off the steps."""
    assert ok.timing is not None
    optimizer = ok.timing.optimizer_step.mean
    return statistic([step - optimizer for step in ok.step_seconds]) / ok.accumulation_steps


def refused(row: dict[str, Any], target: float, with_intervals: bool) -> bool:
    """Tell whether a run would refuse this proof for its speed."""
    noise = 0.0
    if with_intervals:
        probe, proof = (math.hypot(row[f"{kind}_interval"], row["drift"]) for kind in ("probe", "proof"))
        noise = math.hypot(probe, proof * row["ratio"])
    return bool(row["ratio"] + noise < 1 - target)


def spread(ratios: Sequence[float]) -> float:
    """Return the half-width of the 95% interval of one measurement, as a share, from ratios of two."""
    variance = statistics.fmean(math.log(ratio) ** 2 for ratio in ratios) / 2
    return t_quantile(len(ratios)) * math.sqrt(variance)


def main() -> int:
    """Measure until the time is over, print the distributions, record them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=540.0, help="no turn begins after these")
    parser.add_argument("--case", action="append", help="model:seq_len:micro_batch")
    parser.add_argument("--device", default="cpu:4GiB")
    parser.add_argument("--sample-time", type=float, default=3.0)
    parser.add_argument("--proof-time", type=float, default=6.0)
    parser.add_argument("--target", type=float, default=Limits().speed_tolerance)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    turns = 2
    if options.smallest:
        options.case, options.seconds, turns = ["tiny-gpt2:32:1"], 0.0, 1
        options.sample_time = options.proof_time = 0.5
    try:
        executor = LocalExecutor(find(resolve_device(DeviceSpec.parse(options.device))))
    except AutotuneError as error:
        raise unmeasured("repeatability", str(error)) from None
    cases = options.case or list(CASES)
    rows: list[dict[str, Any]] = []
    load, began, turn, longest = os.getloadavg(), time.monotonic(), 0, 0.0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        while turn < turns or time.monotonic() - began + longest < options.seconds:
            started = time.monotonic()
            for case in cases:
                place = Path(folder) / f"{turn}-{case.replace(':', '-').replace('/', '-')}"
                probe = launch(executor, case, "train", options.sample_time, place / "probe")
                proof = launch(executor, case, "prove", options.proof_time, place / "proof")
                rows.append({"case": case, "turn": turn, **compared(Candidate(), probe, proof)})
            longest, turn = max(longest, time.monotonic() - started), turn + 1
    table = Table("case", "statistic", "ratios", "least", "median", "most", "95% of one measurement")
    floors: dict[str, float] = {}
    for case in cases:
        own = [row for row in rows if row["case"] == case]
        for name in STATISTICS:
            ratios = [row[name] for row in own]
            table.add_row(
                case, name, str(len(ratios)),
                *(f"{f(ratios):.3f}" for f in (min, statistics.median, max)), f"± {spread(ratios):.1%}",
            )  # fmt: skip
        floors[case] = spread([row["trimmed mean"] for row in own])
    Console().print(table)
    plain, ruled = (sum(refused(row, options.target, rule) for row in rows) for rule in (False, True))
    off = {
        case: statistics.median(row["trimmed mean"] for row in rows if row["case"] == case) for case in cases
    }
    print(
        f"refused for speed at a tolerance of {options.target:.0%}: {plain} of {len(rows)} proofs by the plain rule, "
        f"{ruled} by the rule with intervals; floor {min(floors.values()):.1%} (autotune states {FLOOR:.0%}); "
        f"load before {load[0]:.1f}"
    )
    path = record(
        "repeatability", rows, options.out, smallest=options.smallest, device=executor.describe().device.name,
        load=load,
        cores=os.cpu_count(), target=options.target, sample_seconds=options.sample_time,
        proof_seconds=options.proof_time, refused_plain=plain, refused=ruled, floor=min(floors.values()),
        half_width_by_case=floors, median_ratio_by_case=off,
    )  # fmt: skip
    print(path)
    missed = [f"no proof refused for its speed: {ruled} of {len(rows)}"] if ruled else []
    missed += [
        f"a median ratio within {options.target:.0%} of 1 for {case}: {ratio:.3f}"
        for case, ratio in off.items()
        if abs(ratio - 1) > options.target
    ]
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
