"""What a probe costs beyond its training steps: start-up, import, build, teardown. Cold and warm, in turns.

    python -m benchmarks.probe_overhead [--model gpt2] [--seq-len 64] [--repeat 5] [--device cpu:4GiB]

A probe's wall time is split at the messages of its worker. `training` is everything from the first forward pass
to the verdict; the ratio printed at the end is overhead over a bare training step of the same probe. Warm probes are
forked from a server, as in a run; what the first of them waits for it is told apart. Trained is in fp32, because there
are processors that emulate bf16: on one, eleven probes in bf16 were not done in 20 minutes.

Targets, on 2 cores that do nothing else, in the median: cold an overhead of at most 10 s; warm at most 0.2 s beyond
training and the model's build. Of cold probes nothing was asked first: their limit was set on 2026-11-22, after 5.0 s
had been recorded the day before. That of warm ones was asked before any was measured.

Behind the verdict the kernel frees the training's memory, which counts here: 0.06 to 0.07 s for each GiB, warm and cold
alike (docs/log.md).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.device import Device
from autotune.devices.find import find, resolve_device
from autotune.errors import AutotuneError
from autotune.executors.local import LocalExecutor
from autotune.models.resolve import resolve
from autotune.outcome import Ok
from autotune.probe.exit import Report
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import ProbeRequest, Progress, Result
from autotune.probe.warm import WarmLauncher
from autotune.specs import DeviceSpec
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

COLD_LIMIT = 10.0
"""Seconds of a cold probe that are no training."""
WARM_LIMIT = 0.2
"""Seconds of a warm probe that are neither training nor the model's build."""
PARTS = ("start and import", "build", "training", "verdict and teardown")


class Kept:
    """A launcher that keeps the last report."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.report: Report | None = None

    def __call__(self, *where: Any, **options: Any) -> Report:
        """Launch, and keep what was seen."""
        self.report = self._launcher(*where, **options)
        return self.report


def measure(device: Device, launcher: Launcher, request: ProbeRequest, folder: Path) -> dict[str, Any]:
    """Run one probe and return the seconds of each part, with the time of its bare steps."""
    seen: dict[str, float] = {}
    kept = Kept(launcher)
    began = time.monotonic()

    def note(progress: Progress) -> None:
        seen.setdefault(progress.phase, time.monotonic())

    finding = LocalExecutor(device, kept).run(request, folder, timeout=600.0, on_progress=note)
    ended = time.monotonic()
    if not isinstance(finding.answer, Ok):
        raise unmeasured("probe_overhead", f"the probe did not train: {finding.answer}")
    assert kept.report is not None
    assert isinstance(kept.report.answer, Result)
    judged = kept.report.answer.since  # all processes share the clock
    assert judged is not None
    steps = sum(
        phase.seconds
        for phase in finding.answer.phases
        if phase.phase in {"forward", "backward", "optimizer"}
    )
    return {
        "launcher": kept.report.launcher,
        "cold because": kept.report.cold_because,
        "start and import": seen["build"] - began,
        "build": seen["forward"] - seen["build"],
        "training": judged - seen["forward"],
        "verdict and teardown": ended - judged,
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
        device = find(resolve_device(DeviceSpec.parse(options.device)))
    except AutotuneError as error:
        raise unmeasured("probe_overhead", str(error)) from None
    facts = device.facts()
    request = ProbeRequest(
        kind="train", model=resolve(options.model, base=Path.cwd()), candidate=Candidate(precision="fp32"),
        seq_len=options.seq_len, accumulation_steps=1, device=facts.torch_name,
        budget=facts.budget, seed=0, sample_seconds=0.1, sample_steps=2, folder="",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, WarmLauncher() as warm:
        launchers: tuple[Launcher, ...] = (launch, warm)
        first = measure(device, warm, request, Path(folder) / "first")
        rows = [
            measure(device, launcher, request, Path(folder) / f"{number}-{place}")
            for number in range(options.repeat)
            for place, launcher in enumerate(launchers)
        ]
    cold, forked = ([row for row in rows if row["launcher"] == name] for name in ("cold", "warm"))
    if len(cold) != len(forked):
        why = next(row["cold because"] for row in cold if row["cold because"])
        raise unmeasured("probe_overhead", f"no server of warm probes works here: {why}")
    overhead = statistics.median(row["total"] - row["training"] for row in cold)
    beyond = statistics.median(row["total"] - row["training"] - row["build"] for row in forked)
    _print(cold, forked)
    ratio = statistics.median((row["total"] - row["training"]) / row["one step"] for row in cold)
    print(
        f"overhead of a cold probe: {overhead:.2f} s, {ratio:.1f} times a bare training step of {options.model}"
    )
    print(f"of a warm one beyond training and build: {beyond:.2f} s; the first waited for its server, and took "
          f"{first['start and import']:.2f} s to start")  # fmt: skip
    path = record(
        "probe_overhead", rows, options.out, smallest=options.smallest, device=facts.name,
        overhead_seconds=overhead, overhead_over_step=ratio, warm_seconds=beyond, first_warm=first,
    )  # fmt: skip
    print(path)
    missed = []
    if overhead > COLD_LIMIT:
        missed.append(f"a cold overhead of at most {COLD_LIMIT:g} s: {overhead:.1f} s")
    if beyond > WARM_LIMIT:
        missed.append(f"at most {WARM_LIMIT:g} s of a warm probe beyond training and build: {beyond:.2f} s")
    return verdict([] if options.smallest else missed)


def _print(cold: list[dict[str, Any]], warm: list[dict[str, Any]]) -> None:
    """Print the parts of both kinds of probes side by side."""
    table = Table("part", "cold: median s", "min s", "max s", "warm: median s", "min s", "max s")
    for part in (*PARTS, "one step", "total"):
        cells = [
            f"{of([row[part] for row in rows]):.2f}"
            for rows in (cold, warm)
            for of in (statistics.median, min, max)
        ]
        table.add_row(part, *cells)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
