"""How much slower training is in bf16 and fp16 where the processor only emulates them, and whether a run sees that.

    python -m benchmarks.emulated_precision [--pairs 4]

Before its first probe a run times matrix products in each type, and searches in fp32 where another one takes more than
`autotune.specs.EMULATED` times as long. Here the same timings stand beside what they are to tell: probes of one model
in fp32 and in the other type, in turn, so that a machine that slows down slows both. A processor with AVX512-BF16 or
AMX computes bf16 itself, others do not.

Target: of each type that the timings call emulated, fp32 trains faster in every pair.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from autotune.candidate import Candidate, Precision
from autotune.devices.cpu import CpuDevice
from autotune.executors.local import LocalExecutor
from autotune.outcome import Ok, Outcome
from autotune.probe.protocol import Inspection, ProbeRequest
from autotune.probe.warm import WarmLauncher
from autotune.specs import EMULATED, DeviceSpeed
from autotune.units import GIB
from benchmarks.memory_accuracy import model_spec
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

MODEL: tuple[str, dict[str, Any]] = ("gpt2", {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 4096})
SMALL: tuple[str, dict[str, Any]] = ("gpt2", {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 128})
TYPES: tuple[Precision, ...] = ("bf16", "fp16")
PAIRS = 4
BUDGET, TIMEOUT = 2 * GIB, 600.0


class Bench:
    """One model on the cpu device, asked again and again."""

    def __init__(self, model: tuple[str, dict[str, Any]], launcher: WarmLauncher) -> None:
        self.model = model_spec(*model)
        self.executor = LocalExecutor(CpuDevice(BUDGET), launcher)

    def _run(self, kind: Literal["inspect", "train"], precision: Precision) -> Outcome | Inspection:
        request = ProbeRequest(
            kind=kind, model=self.model, candidate=Candidate(precision=precision, micro_batch=2), seq_len=128,
            accumulation_steps=1, device="cpu", time_device=kind == "inspect", budget=BUDGET, seed=0,
            sample_seconds=1.0, sample_steps=2, folder="",
        )  # fmt: skip
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
            return self.executor.run(request, Path(folder) / "probe", timeout=TIMEOUT).answer

    def speed(self) -> DeviceSpeed:
        """Return what an inspection times of the device."""
        answer = self._run("inspect", "fp32")
        if not isinstance(answer, Inspection) or answer.speed is None:
            raise unmeasured("emulated_precision", f"the inspection came to {answer}")
        return answer.speed

    def step(self, precision: Precision) -> float:
        """Return the seconds of an optimizer step in a probe."""
        answer = self._run("train", precision)
        if not isinstance(answer, Ok) or answer.timing is None:
            raise unmeasured("emulated_precision", f"a probe in {precision} came to {answer}")
        return statistics.mean(answer.step_seconds)


def main() -> int:
    """Time the device, train in turns, print the ratios of both, record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of probes of each type, with fp32")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    types, pairs = (TYPES[:1], 1) if options.smallest else (TYPES, options.pairs)
    rows: list[dict[str, Any]] = []
    with WarmLauncher() as launcher:
        bench = Bench(SMALL if options.smallest else MODEL, launcher)
        speed = bench.speed()
        for precision in types:
            steps = [{"fp32": bench.step("fp32"), precision: bench.step(precision)} for _ in range(pairs)]
            products = speed.matrix_flops["fp32"] / speed.matrix_flops[precision]
            ratios = [pair[precision] / pair["fp32"] for pair in steps]
            emulated = speed.emulates(precision)
            print(
                f"{precision}: matrix products take {products:.2f} times fp32's time ({'' if emulated else 'not '}"
                f"emulated), steps {min(ratios):.2f} to {max(ratios):.2f} times"
            )
            rows.append(
                {
                    "precision": precision, "products": products, "emulated": emulated, "steps": ratios,
                    "step_seconds": steps,
                }
            )  # fmt: skip
    print(
        record(
            "emulated_precision", rows, options.out, smallest=options.smallest, emulated_beyond=EMULATED,
            matrix_flops=speed.matrix_flops,
        )
    )  # fmt: skip
    if options.smallest:
        return verdict([])
    return verdict(
        [
            f"{row['precision']} is called emulated, and fp32 is slower in a pair"
            for row in rows
            if row["emulated"] and min(row["steps"]) < 1
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
