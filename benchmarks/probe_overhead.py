"""What a probe costs beyond its training steps: start-up, import, build, teardown. Cold, every time.

    python -m benchmarks.probe_overhead [--model gpt2] [--seq-len 64] [--repeat 5] [--device cpu:4GiB]

A probe's wall time is split at the messages of its worker. `training` is everything from the first forward pass
to the verdict; the ratio printed at the end is overhead over a bare training step of the same probe.

Target, on 2 cores that do nothing else: an overhead of at most 10 s in the median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.find import find, resolve_device
from autotune.errors import AutotuneError
from autotune.executors.local import LocalExecutor
from autotune.models.resolve import resolve
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.specs import DeviceSpec
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

LIMIT = 10.0
"""Seconds of overhead."""
PARTS = ("start and import", "build", "training", "verdict and teardown")


def measure(executor: LocalExecutor, request: ProbeRequest, folder: Path) -> dict[str, float]:
    """Run one probe and return the seconds of each part, with the time of its bare steps."""
    seen: dict[str, float] = {}
    last = began = time.monotonic()

    def note(progress: Progress) -> None:
        nonlocal last
        last = time.monotonic()
        seen.setdefault(progress.phase, last)

    finding = executor.run(request, folder, timeout=600.0, on_progress=note)
    ended = time.monotonic()
    if not isinstance(finding.answer, Ok):
        raise unmeasured("probe_overhead", f"the probe did not train: {finding.answer}")
    steps = sum(
        phase.seconds
        for phase in finding.answer.phases
        if phase.phase in {"forward", "backward", "optimizer"}
    )
    return {
        "start and import": seen["build"] - began,
        "build": seen["forward"] - seen["build"],
        "training": last - seen["forward"],
        "verdict and teardown": ended - last,
        "one step": steps,
        "total": ended - began,
    }


def main() -> int:
    """Measure, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cpu:4GiB")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    if options.smallest:
        options.model, options.seq_len, options.repeat = "tiny-gpt2", 32, 1
    try:
        executor = LocalExecutor(find(resolve_device(DeviceSpec.parse(options.device))))
    except AutotuneError as error:
        raise unmeasured("probe_overhead", str(error)) from None
    request = ProbeRequest(
        kind="train", model=resolve(options.model, base=Path.cwd()), candidate=Candidate(),
        seq_len=options.seq_len, accumulation_steps=1, device=executor.describe().device.torch_name,
        budget=executor.describe().device.budget, seed=0, sample_seconds=0.1, sample_steps=2, folder="",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        rows = [measure(executor, request, Path(folder) / str(number)) for number in range(options.repeat)]
    table = Table("part", "median s", "min s", "max s")
    for part in (*PARTS, "one step", "total"):
        values = [row[part] for row in rows]
        table.add_row(part, *(f"{f(values):.2f}" for f in (statistics.median, min, max)))
    overhead = statistics.median(row["total"] - row["training"] for row in rows)
    ratio = statistics.median((row["total"] - row["training"]) / row["one step"] for row in rows)
    Console().print(table)
    print(
        f"overhead of a cold probe: {overhead:.2f} s, {ratio:.1f} times a bare training step of {options.model}"
    )
    path = record(
        "probe_overhead", rows, options.out, smallest=options.smallest, device=executor.describe().device.name,
        overhead_seconds=overhead, overhead_over_step=ratio,
    )  # fmt: skip
    print(path)
    met = options.smallest or overhead <= LIMIT
    return verdict([] if met else [f"an overhead of at most {LIMIT:g} s: {overhead:.1f} s"])


if __name__ == "__main__":
    sys.exit(main())
