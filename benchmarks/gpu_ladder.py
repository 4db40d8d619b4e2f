"""Every rung of the ladder on a real GPU, with growing micro-batch until a real CUDA out-of-memory.

    python -m benchmarks.gpu_ladder [--model gpt2-xl] [--seq-len 1024] [--device cuda]

For every legal rung: micro-batch 1, 2, 4, ... until the first OOM. Prints the four memory numbers, tokens/s and
MFU of each probe and writes them as JSON. Needs an NVIDIA GPU; without one it says so in one line and exits with 2.

Target: every rung ends in a real out-of-memory or at the largest micro-batch, none in a crash or a timeout.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate, choices
from autotune.devices.find import find, resolve_device
from autotune.errors import AutotuneError
from autotune.executors.local import LocalExecutor
from autotune.models.resolve import resolve
from autotune.outcome import Ok, Oom
from autotune.probe.protocol import Inspection, ProbeRequest
from autotune.search.selection import mfu
from autotune.search.shipped import load_space
from autotune.search.wording import detail
from autotune.specs import DeviceSpec, ModelFacts, ModelSpec
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

ACCUMULATION = 8
"""Micro-steps of a global step, over which the time of the optimizer step is spread."""


def rungs() -> list[Candidate]:
    """Return every legal combination of precision, checkpointing and offload."""
    space = load_space("default")
    axes = ("precision", "checkpointing", "offload")
    combinations = itertools.product(*(choices(axis) for axis in axes))
    found = [Candidate.model_validate(dict(zip(axes, values, strict=True))) for values in combinations]
    return [candidate for candidate in found if space.refusal(candidate) is None]


class Ladder:
    """Probes of one model on one device."""

    def __init__(self, executor: LocalExecutor, model: ModelSpec, seq_len: int, folder: Path) -> None:
        self.executor, self.model, self.seq_len, self.folder = executor, model, seq_len, folder
        self.count = 0
        answer = self.run(Candidate(), "inspect")
        if not isinstance(answer, Inspection):
            raise unmeasured("gpu_ladder", f"{model.name} cannot be inspected: {detail(answer)}")
        self.facts: ModelFacts = answer.facts

    def run(self, candidate: Candidate, kind: str) -> Any:
        """Run one request in its own folder."""
        self.count += 1
        request = ProbeRequest.model_validate(
            {
                "kind": kind, "model": self.model, "candidate": candidate, "seq_len": self.seq_len,
                "accumulation_steps": ACCUMULATION, "device": self.executor.describe().device.torch_name,
                "budget": self.executor.describe().device.budget, "seed": 0, "sample_seconds": 3.0, "sample_steps": 10,
                "folder": "",
            }
        )  # fmt: skip
        return self.executor.run(request, self.folder / str(self.count), timeout=300.0).answer

    def climb(self, rung: Candidate, largest: int) -> list[dict[str, Any]]:
        """Double the micro-batch of one rung until it no longer fits."""
        rows = []
        size = 1
        while size <= largest:
            outcome = self.run(rung.at(size), "train")
            rows.append(self.row(rung, size, outcome))
            if not isinstance(outcome, Ok):
                break
            size *= 2
        return rows

    def row(self, rung: Candidate, size: int, outcome: Any) -> dict[str, Any]:
        """Return one probe as numbers; None where there is none."""
        row: dict[str, Any] = {"rung": title_of(rung), "micro_batch": size, "verdict": outcome.kind}
        if isinstance(outcome, Oom):
            return {**row, "phase": outcome.phase, "requested": outcome.requested, "free": outcome.free}
        if not isinstance(outcome, Ok):
            return {**row, "detail": detail(outcome)}
        assert outcome.timing is not None
        seconds = outcome.timing.global_step(ACCUMULATION)
        speed = ACCUMULATION * size * self.facts.tokens_per_sample / seconds
        peak = self.executor.describe().device.peak_flops.get(rung.math_type)
        memory = outcome.memory
        return {
            **row, "allocated": memory.allocated, "reserved": memory.reserved, "device_peak": memory.device_peak,
            "budget": memory.budget, "breakdown": memory.breakdown.model_dump(),
            "allocator_retries": memory.allocator_retries, "tokens_per_second": speed,
            "micro_step_seconds": outcome.timing.micro_step.mean,
            "optimizer_step_seconds": outcome.timing.optimizer_step.mean,
            "mfu": mfu(speed, self.facts, self.seq_len, peak, 1) if peak else None,
            "attention": outcome.attention,
        }  # fmt: skip


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the rows as a table."""
    table = Table("rung", "micro-batch", "verdict", "allocated", "reserved", "device", "tokens/s", "MFU")
    for row in rows:
        numbers = [
            format_bytes(row[key]) if key in row else "-" for key in ("allocated", "reserved", "device_peak")
        ]
        speed = f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else "-"
        share = f"{row['mfu']:.1%}" if row.get("mfu") is not None else "-"
        verdict = f"{row['verdict']} in {row['phase']}" if "phase" in row else row["verdict"]
        table.add_row(row["rung"], str(row["micro_batch"]), verdict, *numbers, speed, share)
    console.print(table)


def main() -> int:
    """Climb every rung, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2-xl")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--largest", type=int, default=256, help="micro-batch at which to stop")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    if options.smallest:
        options.model, options.seq_len, options.largest = "tiny-gpt2", 64, 1
    try:
        executor = LocalExecutor(find(resolve_device(DeviceSpec.parse(options.device))))
        model = resolve(options.model, base=Path.cwd())
    except (AutotuneError, ValueError) as error:
        raise unmeasured("gpu_ladder", str(error)) from None
    console = Console()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        ladder = Ladder(executor, model, options.seq_len, Path(folder))
        for rung in rungs()[: 1 if options.smallest else None]:
            rows += ladder.climb(rung, options.largest)
            # Recorded after every rung: a machine that is taken away keeps what was measured.
            path = record(
                f"gpu_ladder-{options.model}", rows, options.out, smallest=options.smallest,
                device=executor.describe().device.model_dump(),
                model=ladder.facts.model_dump(), seq_len=options.seq_len, accumulation_steps=ACCUMULATION,
            )  # fmt: skip
    show(rows, console)
    print(path)
    ended = [row for row in rows if row["verdict"] not in {"ok", "oom", "unsupported"}]
    return verdict(
        [f"{row['rung']} ends in memory, not in {row['verdict']}: {row['detail']}" for row in ended]
    )


if __name__ == "__main__":
    sys.exit(main())
