"""Does a proof survive its own claim? Winners of ten runs, trained on for 50 optimizer steps.

    python -m benchmarks.long_training [--case NAME ...]    # cases named here replace theirs in the record

Each case is an `autotune run` on this machine's processor (one and two ranks, budgets that some of its probes run out
of). What it emitted is then trained for 50 more optimizer steps of two micro-steps at the longest sequences, with an
evaluation at the micro-batch that the proof found and a checkpoint after every tenth, in processes under the same
budget. It must not run out of memory, its peak must be within the stated tolerance of `best.yaml`'s, what it takes of
the device within the budget, and its speed no lower than the interval that `best.yaml` states. These are the targets;
of the smallest case, whose peak is in the noise of a process, only the budget is judged. Of a dataset of rows of many
lengths the stated speed is of its own batches, so 20 steps in its own order come after the 50, and are what is timed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.devices.cpu import CpuDevice
from autotune.executors.executor import Executor
from autotune.executors.local import LocalExecutor
from autotune.executors.ranks import RanksExecutor
from autotune.options import Limits
from autotune.outcome import Ok
from autotune.probe.launch import WORKER, launch
from autotune.probe.protocol import Inspection
from autotune.run.best import Best
from autotune.run.proof import proof_request
from autotune.search.comparison import CPU_NOISE
from autotune.search.selection import throughput
from autotune.search.wording import detail
from autotune.techniques.families import title as title_of
from autotune.units import MIB, format_bytes, format_count, format_size
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, verdict

LONG_WORKER = (*WORKER[:-1], "benchmarks.long_training_worker")
TIMEOUT = 900.0
"""Seconds for one long training."""


@dataclass(frozen=True)
class Case:
    """One run whose winner is trained on."""

    name: str
    config: dict[str, Any] | None
    """What is written as config.json; None where `model` is a preset."""
    options: tuple[str, ...]
    """Of `autotune run`, beside the model."""
    model: str = "config.json"
    files: dict[str, str] = field(default_factory=dict)
    """Further files that the run reads, by name."""


def gpt2(width: int, layers: int, **more: Any) -> dict[str, Any]:
    """Return the configuration of a GPT-2 of another size."""
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": width, "n_layer": layers,
            "n_head": width // 64, "n_positions": 512, "vocab_size": 8192, **more}  # fmt: skip


def llama(kind: str, architecture: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a small model with Llama's blocks."""
    return {"model_type": kind, "architectures": [architecture], "hidden_size": 256, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 704, "vocab_size": 8192,
            "max_position_embeddings": 512, **more}  # fmt: skip


BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "intermediate_size": 1024, "vocab_size": 8192}  # fmt: skip
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 256, "num_layers": 3, "d_kv": 64,
      "num_heads": 4, "d_ff": 1024, "vocab_size": 8192}  # fmt: skip
OWN_DATA = '''"""A model of one's own with a dataset of samples of unequal length, padded by its collate function."""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, GPT2Config


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(32, 257, (1,), generator=generator))
        return torch.randint(8192, (length,), generator=generator)


def collate(samples):
    ids = pad_sequence(samples, batch_first=True)
    return {"input_ids": ids, "labels": ids}


def build():
    config = GPT2Config(n_embd=256, n_layer=4, n_head=4, n_positions=256, vocab_size=8192)
    return AutoModelForCausalLM.from_config(config), Samples(), collate
'''
LENGTHS = "length,count\n" + "".join(f"{length},{320 - length}\n" for length in range(32, 257, 16))

CASES = (
    Case("gpt2", None, ("--seq-len", "32", "--target-global-batch", "128", "--device", "cpu:3GiB"), model="gpt2"),
    Case("middle-sized gpt2, little memory", gpt2(512, 8),
         ("--seq-len", "64", "--target-global-batch", "1K", "--device", "cpu:640MiB", "--max-probes", "6")),
    Case("small gpt2, no predictions", gpt2(256, 6),
         ("--seq-len", "256", "--target-global-batch", "16K", "--device", "cpu:640MiB", "--no-predict")),
    Case("small llama", llama("llama", "LlamaForCausalLM"),
         ("--seq-len", "256", "--target-global-batch", "16K", "--device", "cpu:576MiB")),
    Case("small mixtral", llama("mixtral", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
         ("--seq-len", "256", "--target-global-batch", "8K", "--device", "cpu:640MiB")),
    Case("small bert", BERT, ("--seq-len", "256", "--target-global-batch", "16K", "--device", "cpu:576MiB")),
    Case("small t5", T5, ("--seq-len", "128", "--target-global-batch", "8K", "--device", "cpu:640MiB")),
    Case("padded dataset of one's own", None,
         ("--seq-len", "256", "--target-global-batch", "16K", "--device", "cpu:704MiB"),
         model="own.py:build", files={"own.py": OWN_DATA}),
    Case("two ranks, small gpt2", gpt2(256, 6),
         ("--seq-len", "128", "--target-global-batch", "8K", "--device", "cpu:640MiB", "--gpus", "2",
          "--max-probes", "6")),
    Case("two ranks, small llama, known lengths", llama("llama", "LlamaForCausalLM"),
         ("--seq-len", "256", "--target-global-batch", "16K", "--device", "cpu:640MiB", "--gpus", "2",
          "--lengths", "lengths.csv", "--space", "packing", "--max-probes", "6"), files={"lengths.csv": LENGTHS}),
)  # fmt: skip
SMALLEST_CASE = Case(
    "tiny gpt2", None,
    ("--seq-len", "32", "--target-global-batch", "64", "--device", "cpu:512MiB", "--max-probes", "1", "--no-predict",
     "--speed-tolerance", "0.8"), model="tiny-gpt2",
)  # fmt: skip


def tune(case: Case, folder: Path) -> Best | str:
    """Run `autotune run` as a user would; return what it emitted, or how it ended."""
    if case.config is not None:
        (folder / "config.json").write_text(json.dumps(case.config))
    for name, text in case.files.items():
        (folder / name).write_text(text)
    shortest = case is SMALLEST_CASE
    times = ("--sample-time", "0.3s" if shortest else "5s", "--proof-time", "0.5s" if shortest else "20s")
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "run", "--model", case.model, *case.options, *times],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = sorted(folder.glob("runs/*/best.yaml"))
    if done.returncode or not found:
        return f"no winner (exit code {done.returncode}): {done.stderr[-600:]}"
    return Best.read(found[0])


def train_on(best: Best, folder: Path, smallest: bool) -> dict[str, Any]:
    """Train a winner on, and compare with what `best.yaml` promises."""
    assert best.proof is not None
    limits = Limits()
    request = proof_request(best, limits.proof_time).model_copy(
        update={"evaluation_micro_batch": best.proof.evaluation_micro_batch or best.candidate.micro_batch}
    )
    device, launcher = CpuDevice(best.memory.budget), partial(launch, worker=LONG_WORKER)
    executor: Executor = LocalExecutor(device, launcher)
    if best.gpus > 1:
        executor = RanksExecutor([device] * best.gpus, launcher, best.nodes)
    finding = executor.run(request, folder / "long", timeout=TIMEOUT)
    outcome = finding.answer
    assert not isinstance(outcome, Inspection)
    if not isinstance(outcome, Ok):
        return {"failed": [f"{outcome.kind}: {detail(outcome)}"]}
    assert outcome.timing is not None
    memory = outcome.memory
    _, speed, _ = throughput(outcome.timing, best.accumulation)
    drift = memory.allocated - best.memory.allocated
    allowed = max(limits.memory_tolerance * best.memory.allocated, CPU_NOISE)
    least = best.tokens_per_second - best.tokens_per_second_interval
    failed = []
    if not smallest and abs(drift) > allowed:
        failed.append(f"peak off by {drift / MIB:+.1f} MiB, {allowed / MIB:.1f} MiB are allowed")
    if memory.peak() > memory.budget:
        failed.append(f"{format_bytes(memory.peak())} taken of a budget of {format_bytes(memory.budget)}")
    if not smallest and speed < least:
        failed.append(f"{format_count(speed)} tokens/s, at least {format_count(least)} are stated")
    return {
        "steps": len(outcome.losses), "micro_steps": outcome.accumulation_steps,
        "evaluation_micro_batch": request.evaluation_micro_batch,
        "allocated": memory.allocated, "recorded_allocated": best.memory.allocated,
        "taken": memory.peak(), "budget": memory.budget,
        "tokens_per_second": speed, "stated": [best.tokens_per_second, best.tokens_per_second_interval],
        "loss": [outcome.losses[0], outcome.losses[-1]], "seconds": finding.seconds, "failed": failed,
    }  # fmt: skip


def main() -> int:
    """Run the cases, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="one case; may be repeated")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    rows = []
    for case in (SMALLEST_CASE,) if options.smallest else CASES:
        if options.case and case.name not in options.case:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".long-training-") as folder:
            best = tune(case, Path(folder))
            row: dict[str, Any] = {"case": case.name, "options": list(case.options), "date": moment()}
            if isinstance(best, str):
                row["failed"] = [best]
            else:
                winner = {"winner": title_of(best.candidate), "micro_batch": best.candidate.micro_batch,
                          "accumulation_steps": best.accumulation.steps, "ranks": best.gpus}  # fmt: skip
                row |= winner | train_on(best, Path(folder), options.smallest)
        row["wall_seconds"] = time.monotonic() - began
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.case:
        rows = beside(rows, options.out / "long_training.json")
    show(rows)
    missed = [row["case"] for row in rows if row["failed"]]
    print(record("long_training", rows, options.out, smallest=options.smallest, missed=missed))
    return verdict([f"{row['case']}: {why}" for row in rows for why in row["failed"]])


def moment() -> str:
    """Return the time in UTC, for a row."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def beside(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return the rows of a record with some measured anew, in the order of the cases."""
    known = {row["case"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    known |= {row["case"]: row for row in rows}
    return [known[case.name] for case in CASES if case.name in known]


def show(rows: list[dict[str, Any]]) -> None:
    """Print what each winner took and how fast it was, beside what was stated."""
    table = Table(
        "case", "winner", "micro-batch", "peak (stated)", "of the budget", "tokens/s (stated)", "verdict"
    )
    for row in rows:
        verdict = "; ".join(row["failed"]) or "held"
        if "allocated" not in row:
            table.add_row(row["case"], row.get("winner", "-"), "-", "-", "-", "-", verdict)
            continue
        stated, interval = row["stated"]
        table.add_row(
            row["case"], f"{row['winner']} x {row['ranks']}", str(row["micro_batch"]),
            f"{format_bytes(row['allocated'])} ({format_bytes(row['recorded_allocated'])})",
            f"{row['taken'] / row['budget']:.0%} of {format_size(row['budget'])}",
            f"{format_count(row['tokens_per_second'])} ({format_count(stated)} ± {format_count(interval)})", verdict,
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
