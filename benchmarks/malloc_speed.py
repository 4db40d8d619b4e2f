"""What the allocator settings of the cpu device cost: the same probe under them and under malloc's defaults, in turn.

    python -m benchmarks.malloc_speed [--model gpt2] [--seq-len 256] [--micro-batch 3] [--pairs 5] [--device cpu:5GiB]
    python -m benchmarks.malloc_speed --setting MALLOC_MMAP_THRESHOLD_=33554432     another setting in place of ours

The settings make memory exact (`autotune/devices/cpu.py`): under malloc's defaults the same training takes more, so a
budget would hold less. A pair is one probe of each, cold, one right after the other, in changing order; the ratio is
that of the time of a micro-step, and its mean is that of the logarithms.

Target, on a machine that does nothing else: a micro-step at most 5% slower than with malloc's defaults.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.confidence import t_quantile
from autotune.devices.cpu import CpuDevice
from autotune.errors import AutotuneError
from autotune.executors.local import LocalExecutor
from autotune.models.resolve import resolve
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest
from autotune.specs import DeviceSpec
from autotune.units import MIB
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

LIMIT = 1.05
"""Time of a micro-step over that with malloc's defaults."""


class Tried(CpuDevice):
    """The same device with other settings on top."""

    def __init__(self, budget: int, settings: dict[str, str]) -> None:
        super().__init__(budget)
        self._settings = settings

    def environment(self, candidate: Candidate) -> dict[str, str]:
        return super().environment(candidate) | self._settings


class Defaults(CpuDevice):
    """The same device without the settings of malloc."""

    def environment(self, candidate: Candidate) -> dict[str, str]:
        variables = super().environment(candidate)
        return {name: value for name, value in variables.items() if not name.startswith("MALLOC_")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--device", default="cpu:5GiB")
    parser.add_argument("--setting", action="append", default=[], help="NAME=VALUE that replaces one of ours")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.smallest:
        arguments.model, arguments.seq_len, arguments.pairs = "tiny-gpt2", 32, 1
    settings = dict(setting.split("=", 1) for setting in arguments.setting)
    budget = DeviceSpec.parse(arguments.device).budget or 0
    try:
        devices = {"exact": Tried(budget, settings), "defaults": Defaults(budget)}
        request = ProbeRequest(
            kind="train", model=resolve(arguments.model, base=Path.cwd()),
            candidate=Candidate(precision="fp32", micro_batch=arguments.micro_batch), seq_len=arguments.seq_len,
            accumulation_steps=2, device="cpu", budget=budget, seed=0,
            sample_seconds=1.0 if arguments.smallest else 30.0, sample_steps=6, folder="",
        )  # fmt: skip
        rows = [measure(devices, request, number) for number in range(arguments.pairs)]
    except AutotuneError as error:
        raise unmeasured("malloc_speed", str(error)) from error
    ratios = [math.log(row["exact"]["micro_step"] / row["defaults"]["micro_step"]) for row in rows]
    mean = statistics.fmean(ratios)
    half = (
        t_quantile(len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
        if len(ratios) > 1
        else 0.0
    )
    ratio = math.exp(mean)
    show(rows, ratio, half)
    record(
        "malloc_speed", rows, arguments.out, smallest=arguments.smallest, ratio=ratio, half_width=half,
        settings=settings, model=arguments.model, seq_len=arguments.seq_len, micro_batch=arguments.micro_batch,
    )  # fmt: skip
    if arguments.smallest:
        return verdict([])
    late = ratio > LIMIT
    return verdict(
        [f"a micro-step takes {ratio:.3f} of the time with malloc's defaults; {LIMIT}"] if late else []
    )


def measure(devices: dict[str, CpuDevice], request: ProbeRequest, number: int) -> dict[str, dict[str, float]]:
    """Probe once on each device and return seconds of a micro-step and bytes at the peak by device."""
    order = list(devices) if number % 2 == 0 else list(reversed(devices))
    found = {}
    for name in order:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            result = LocalExecutor(devices[name]).run(request, Path(folder), timeout=600.0)
        if not isinstance(result.answer, Ok):
            raise unmeasured("malloc_speed", f"the probe did not train: {result.answer}")
        assert result.answer.timing is not None
        found[name] = {
            "micro_step": result.answer.timing.micro_step.mean,
            "peak": float(result.answer.memory.peak()),
        }
    return found


def show(rows: list[dict[str, dict[str, float]]], ratio: float, half: float) -> None:
    """Print the pairs and their mean."""
    table = Table("pair", "exact (s)", "defaults (s)", "ratio", "exact (MiB)", "defaults (MiB)")
    for number, row in enumerate(rows, start=1):
        exact, defaults = row["exact"], row["defaults"]
        table.add_row(
            str(number), f"{exact['micro_step']:.3f}", f"{defaults['micro_step']:.3f}",
            f"{exact['micro_step'] / defaults['micro_step']:.3f}",
            f"{exact['peak'] / MIB:.0f}", f"{defaults['peak'] / MIB:.0f}",
        )  # fmt: skip
    Console().print(table)
    print(f"a micro-step takes {ratio:.3f} of the time with malloc's defaults (± {half:.1%})")


if __name__ == "__main__":
    sys.exit(main())
