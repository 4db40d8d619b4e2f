"""How far apart the peaks of one training lie from launch to launch on the cpu device.

    python -m benchmarks.peak_noise [--times 5]

Each turn launches every case twice, as a probe forked from a server and as a proof that starts cold: those are what a
run compares. Two models train on one rank, and the smaller one on two (DDP). The smallest trains compiled, too, and is
proven for a minute, as by default: it takes so many steps that what is kept of each would be seen. The kernel counts a
process's private bytes, of which the worker takes off what it held before the model: so what is called tensors holds
threads, buffers of libraries and the heap too. Nothing is timed, so the machine may do other work.

Target: no two peaks of a case are further apart than `autotune.search.comparison.CPU_NOISE`. 4 MiB were assumed first;
the record of 2026-11-22 showed 1.05 MiB at most, and this was then set to twice that. What is recorded since has the
memory that the allocator keeps given back before the baseline is taken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from autotune.candidate import Candidate, Compile, Precision
from autotune.devices.cpu import CpuDevice
from autotune.executors.executor import Executor
from autotune.executors.local import LocalExecutor
from autotune.executors.ranks import RanksExecutor
from autotune.outcome import Ok
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import ProbeKind, ProbeRequest
from autotune.probe.warm import WarmLauncher
from autotune.search.comparison import CPU_NOISE
from autotune.units import GIB, MIB
from benchmarks.memory_accuracy import model_spec
from benchmarks.ranks import MODEL
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict


class Case(NamedTuple):
    """A training that is launched again and again."""

    model: str
    preset: str
    changes: dict[str, Any]
    ranks: int
    compile: Compile = "none"
    precision: Precision = "bf16"
    proof_seconds: float = 0.1

    def __str__(self) -> str:
        compiled = (
            "" if self.compile == "none" else f", compile {self.compile}, {self.proof_seconds:.0f} s of proof"
        )
        return f"{self.model}, {self.ranks} rank{'s' if self.ranks > 1 else ''}{compiled}"


CASES = (
    Case("tiny-gpt2", "tiny-gpt2", {}, 1),
    Case("gpt2-6x512", *MODEL, 1),
    Case("tiny-gpt2", "tiny-gpt2", {}, 2),
    Case("tiny-gpt2", "tiny-gpt2", {}, 1, "regional", "fp32", 60.0),
)
TIMES = 5
BUDGET, TIMEOUT = 4 * GIB, 600.0


def request(case: Case, kind: ProbeKind) -> ProbeRequest:
    """Return the request of a case's probe or proof."""
    candidate = Candidate(
        precision=case.precision, micro_batch=2, sharding="ddp" if case.ranks > 1 else "none", compile=case.compile
    )  # fmt: skip
    return ProbeRequest(
        kind=kind, model=model_spec(case.preset, case.changes), candidate=candidate, seq_len=128,
        accumulation_steps=2, device="cpu", world_size=case.ranks, budget=BUDGET, seed=0,
        sample_seconds=case.proof_seconds if kind == "prove" else 0.1, sample_steps=2, folder="",
        evaluation_micro_batch=2,
    )  # fmt: skip


def peak(case: Case, kind: ProbeKind, launcher: Launcher) -> int:
    """Return the bytes that one launch took at its peak beyond its baseline, of the fullest rank."""
    device = CpuDevice(BUDGET)
    executor: Executor = LocalExecutor(device, launcher)
    if case.ranks > 1:
        executor = RanksExecutor([device] * case.ranks, launcher)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
        outcome = executor.run(request(case, kind), Path(folder) / "probe", timeout=TIMEOUT).answer
    if not isinstance(outcome, Ok):
        raise unmeasured("peak_noise", f"{case} came to {outcome}")
    return outcome.memory.allocated


def main() -> int:
    """Probe every case in turns, print how far its peaks are apart, record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--times", type=int, default=TIMES, help="turns, each with two launches of every case"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    cases, times = (CASES[:1], 1) if options.smallest else (CASES, options.times)
    found = [(case, {"probe": list[int](), "proof": list[int]()}) for case in cases]
    with WarmLauncher() as warm:
        launches: dict[str, tuple[ProbeKind, Launcher]] = {
            "probe": ("train", warm),
            "proof": ("prove", launch),
        }
        for _ in range(times):
            for case, peaks in found:
                for name, (kind, launcher) in launches.items():
                    peaks[name].append(peak(case, kind, launcher))
                    print(f"{case}, {name}: {peaks[name][-1] / MIB:.2f} MiB", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for case, peaks in found:
        low, high = min(map(min, peaks.values())), max(map(max, peaks.values()))
        print(f"{case}: {low / MIB:.2f} to {high / MIB:.2f} MiB, {(high - low) / MIB:.2f} apart")
        rows.append({"case": str(case), **peaks, "apart": high - low})
    print(record("peak_noise", rows, options.out, smallest=options.smallest, allowed=CPU_NOISE))
    return verdict(
        [f"{row['case']}: {row['apart'] / MIB:.2f} MiB apart" for row in rows if row["apart"] > CPU_NOISE]
    )


if __name__ == "__main__":
    sys.exit(main())
