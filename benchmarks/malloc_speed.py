"""What the cpu device's allocator costs: the same probe under it, under malloc's defaults, and mapped block by block.

    python -m benchmarks.malloc_speed [--model gpt2] [--seq-len 256] [--micro-batch 3] [--turns 5] [--device cpu:5GiB]
    python -m benchmarks.malloc_speed --setting MALLOC_MMAP_THRESHOLD_=33554432     another setting in place of ours

The allocator makes memory exact (`autotune/devices/allocator.c`): under malloc's defaults the same training takes more,
so a budget would hold less. Where it cannot be built, large blocks are mapped one by one, which takes as little. A turn
is one probe of each, cold, one right after the other, every other turn backwards; a ratio is that of the time of a
micro-step, and its mean is that of the logarithms.

Targets, on a machine that does nothing else: a micro-step at most 5% slower than with malloc's defaults; and peaks that
differ from those of blocks mapped one by one by no more than one's own do (`autotune.search.comparison.CPU_NOISE`).
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
from autotune.devices import allocator
from autotune.devices.cpu import CpuDevice
from autotune.errors import AutotuneError
from autotune.executors.local import LocalExecutor
from autotune.models.resolve import resolve
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest
from autotune.search.comparison import CPU_NOISE
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
    """The same device without the allocator and the settings of malloc."""

    def environment(self, candidate: Candidate) -> dict[str, str]:
        variables = super().environment(candidate) | {allocator.VARIABLE: allocator.MALLOC}
        return {name: value for name, value in variables.items() if not name.startswith("MALLOC_")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu:5GiB")
    parser.add_argument("--setting", action="append", default=[], help="NAME=VALUE that replaces one of ours")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.smallest:
        arguments.model, arguments.seq_len, arguments.turns = "tiny-gpt2", 32, 1
    settings = dict(setting.split("=", 1) for setting in arguments.setting)
    budget = DeviceSpec.parse(arguments.device).budget or 0
    try:
        mapped = {allocator.VARIABLE: allocator.MALLOC}
        devices = {
            "ours": Tried(budget, settings),
            "defaults": Defaults(budget),
            "mapped": Tried(budget, mapped),
        }
        request = ProbeRequest(
            kind="train", model=resolve(arguments.model, base=Path.cwd()),
            candidate=Candidate(precision="fp32", micro_batch=arguments.micro_batch), seq_len=arguments.seq_len,
            accumulation_steps=2, device="cpu", budget=budget, seed=0,
            sample_seconds=1.0 if arguments.smallest else 30.0, sample_steps=6, folder="",
        )  # fmt: skip
        rows = [measure(devices, request, number) for number in range(arguments.turns)]
    except AutotuneError as error:
        raise unmeasured("malloc_speed", str(error)) from error
    ratios = {name: compared(rows, name) for name in ("defaults", "mapped")}
    apart = max(abs(row["ours"]["peak"] - row["mapped"]["peak"]) for row in rows)
    show(rows, ratios, apart)
    record(
        "malloc_speed", rows, arguments.out, smallest=arguments.smallest, settings=settings,
        ratio=ratios["defaults"][0], half_width=ratios["defaults"][1], ratio_mapped=ratios["mapped"][0],
        half_width_mapped=ratios["mapped"][1], peaks_apart=apart, model=arguments.model,
        seq_len=arguments.seq_len, micro_batch=arguments.micro_batch,
    )  # fmt: skip
    if arguments.smallest:
        return verdict([])
    missed = []
    if ratios["defaults"][0] > LIMIT:
        missed.append(
            f"a micro-step takes {ratios['defaults'][0]:.3f} of the time with malloc's defaults; {LIMIT}"
        )
    if apart > CPU_NOISE:
        missed.append(
            f"peaks {apart / MIB:.2f} MiB from those of blocks mapped one by one; {CPU_NOISE / MIB:.2f}"
        )
    return verdict(missed)


def compared(rows: list[dict[str, dict[str, float]]], other: str) -> tuple[float, float]:
    """Return our micro-step's time over that of another, with the half-width of its 95% interval, a share of it."""
    ratios = [math.log(row["ours"]["micro_step"] / row[other]["micro_step"]) for row in rows]
    spread = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return math.exp(statistics.fmean(ratios)), t_quantile(len(ratios) - 1) * spread if spread else 0.0


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


def show(
    rows: list[dict[str, dict[str, float]]], ratios: dict[str, tuple[float, float]], apart: float
) -> None:
    """Print the turns and what comes of them."""
    names = {"ours": "allocator", "defaults": "malloc's defaults", "mapped": "mapped one by one"}
    table = Table(
        "turn", *(f"{name} (s)" for name in names.values()), *(f"{name} (MiB)" for name in names.values())
    )
    for number, row in enumerate(rows, start=1):
        table.add_row(
            str(number), *(f"{row[name]['micro_step']:.3f}" for name in names),
            *(f"{row[name]['peak'] / MIB:.0f}" for name in names),
        )  # fmt: skip
    Console().print(table)
    for name, (ratio, half) in ratios.items():
        print(f"a micro-step takes {ratio:.3f} (± {half:.1%}) of its time with {names[name]}")
    print(f"peaks are at most {apart / MIB:.2f} MiB from those of blocks mapped one by one")


if __name__ == "__main__":
    sys.exit(main())
