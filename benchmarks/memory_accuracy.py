"""How far the memory model's predictions are from memory that was measured.

    python -m benchmarks.memory_accuracy             part 1, on the CPU: any machine
    python -m benchmarks.memory_accuracy --part 2    runs that others published
    python -m benchmarks.memory_accuracy --part 3    what gpu_ladder.py measured on an NVIDIA GPU

Part 1 trains small models of eight architectures for two real steps on the CPU, with every allocation counted by
torch's profiler, and compares the peak with the trace's. Of what real kernels allocate inside and give back before they
return, a trace knows what `kernel_workspace` says: the rest is the difference there is.

Targets: a median error of the peak of at most 0.1%, and none above 0.5%. Those of the other parts stand in
`accuracy_published.py` and `accuracy_on_gpu.py`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
from dataclasses import asdict, dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from autotune.candidate import Candidate  # noqa: E402
from autotune.models.resolve import resolve  # noqa: E402
from autotune.probe.protocol import ProbeRequest  # noqa: E402
from autotune.specs import ModelSpec  # noqa: E402
from autotune.techniques.families import title as title_of  # noqa: E402
from autotune.units import MIB  # noqa: E402
from autotune.worker.build.assembly import assemble  # noqa: E402
from autotune.worker.measuring.layer_drop import EveryLayerKept  # noqa: E402
from autotune.worker.measuring.steps import gradient_norm  # noqa: E402
from autotune.worker.tracing.trace import trace  # noqa: E402
from benchmarks import accuracy_on_gpu, accuracy_published  # noqa: E402
from benchmarks.recording import RESULTS, record  # noqa: E402
from benchmarks.verdict import SMALLEST, verdict  # noqa: E402

MICRO_BATCHES = (1, 3, 6)
MEDIAN_LIMIT, WORST_LIMIT = 0.001, 0.005
"""Targets of part 1: relative errors of the peak."""
SMALLEST_MODEL = "user's module"

_WIDTH = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3, "num_attention_heads": 4,
          "vocab_size": 4000}  # fmt: skip
ARCHITECTURES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "GPT-2": ("gpt2", 128, {"n_embd": 256, "n_layer": 3, "n_head": 4, "vocab_size": 4000}),
    "Llama (GQA)": ("llama-3.2-1b", 128, {**_WIDTH, "num_key_value_heads": 2, "head_dim": 64}),
    "Mixtral (MoE)": ("mixtral-8x7b", 128, {**_WIDTH, "num_key_value_heads": 2, "num_local_experts": 4}),
    "Gemma 2": ("gemma-2-2b", 128, {**_WIDTH, "num_key_value_heads": 2, "head_dim": 64}),
    "Qwen 3": ("qwen3-8b", 128, {**_WIDTH, "num_key_value_heads": 2, "head_dim": 64}),
    "BERT": ("bert-base", 128, _WIDTH),
    "T5": (
        "t5-base",
        128,
        {"d_model": 256, "d_ff": 768, "num_layers": 3, "num_heads": 4, "vocab_size": 4000},
    ),
    "ViT": ("vit-base", 197, {k: v for k, v in _WIDTH.items() if k != "vocab_size"}),
    "user's module": ("benchmarks/own_model.py:build", 128, {}),
}
"""Preset (or function), sequence length, and what makes it small."""


@dataclass(frozen=True)
class Row:
    """One comparison; bytes."""

    model: str
    precision: str
    checkpointing: str
    optimizer: str
    micro_batch: int
    measured: int
    predicted: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def model_spec(name: str, changes: dict[str, Any]) -> ModelSpec:
    """Return the preset's specification with some of its configuration changed."""
    spec = resolve(name, base=ROOT)
    changes = {"bos_token_id": 1, "eos_token_id": 2, **changes}
    return spec.model_copy(update={"config": {**spec.config, **changes}}) if spec.config else spec


def request(spec: ModelSpec, seq_len: int, candidate: Candidate, device: str = "cpu") -> ProbeRequest:
    """Return a request for a trace or a measurement."""
    return ProbeRequest(
        kind="train", model=spec, candidate=candidate, seq_len=seq_len, accumulation_steps=1, device=device,
        budget=1 << 50, seed=0, sample_seconds=1, sample_steps=2, folder=str(ROOT),
    )  # fmt: skip


def measure(probe: ProbeRequest, steps: int = 2) -> int:
    """Train for real on the CPU and return the peak of all tensor bytes that torch's allocator handed out.

    No layer is skipped where a model does that by chance, as in the steps of a probe that tell its memory.
    """
    gc.collect()  # nothing of an earlier measurement may be freed during this one
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler, EveryLayerKept():
        training = assemble(probe)
        for step in range(steps):
            batch = training.place(training.batch(step, probe.candidate.micro_batch))
            loss = training.loss(batch)
            (loss / 1).backward()
            kept = loss.detach()
            del loss, batch
            norm = gradient_norm(training)
            training.optimizer.step()
            training.optimizer.zero_grad()
            del norm, kept
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    peak: int = max(accumulate(event.nbytes() for event in events))
    return peak


def part_one(precision: str, only: str | None = None, smallest: bool = False) -> list[Row]:
    """Compare trace and measurement on the CPU; `smallest` in one training."""
    rows: list[Row] = []
    chosen = [item for item in ARCHITECTURES.items() if only is None or only.lower() in item[0].lower()]
    combinations = list(product(chosen, ("none", "full"), ("adamw", "sgd")))[: 1 if smallest else None]
    micro_batches = MICRO_BATCHES[:1] if smallest else MICRO_BATCHES
    for number, ((name, (preset, seq_len, changes)), checkpointing, optimizer) in enumerate(combinations, 1):
        rung = Candidate.model_validate(
            {"precision": precision, "checkpointing": checkpointing, "optimizer": optimizer}
        )
        spec = model_spec(preset, changes)
        timeline = trace(request(spec, seq_len, rung))
        for micro_batch in micro_batches:
            measured = measure(request(spec, seq_len, rung.at(micro_batch)))
            predicted = timeline.allocated(micro_batch)
            rows.append(Row(name, precision, checkpointing, optimizer, micro_batch, measured, predicted))
        worst = max(abs(row.error) for row in rows[-len(micro_batches) :])
        print(f"[{number}/{len(combinations)}] {name}, {title_of(rung)}: {worst:.4%}", file=sys.stderr)
    return rows


def show(rows: list[Row], console: Console) -> None:
    """Print a table and a summary of the errors."""
    table = Table("model", "precision", "checkpointing", "optimizer", "micro-batch", "measured MiB",
                  "predicted MiB", "error", box=None)  # fmt: skip
    for row in rows:
        table.add_row(row.model, row.precision, row.checkpointing, row.optimizer, str(row.micro_batch),
                      f"{row.measured / MIB:.3f}", f"{row.predicted / MIB:.3f}", f"{row.error:+.4%}")  # fmt: skip
    console.print(table)
    errors = [abs(row.error) for row in rows]
    console.print(
        f"{len(rows)} rows: median error {statistics.median(errors):.4%}, worst {max(errors):.4%}, "
        f"{sum(error > MEDIAN_LIMIT for error in errors)} above {MEDIAN_LIMIT:.1%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"), help="of part 1")
    parser.add_argument("--only", help="part of the name of the architectures to try in part 1")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    console = Console(width=150)
    if options.part != 1:
        if options.part == 2:
            found, missed = accuracy_published.run(console, options.smallest)
        else:
            found, missed = accuracy_on_gpu.run(console)
        record(f"memory_accuracy-part{options.part}", found, options.out, smallest=options.smallest)
        return verdict(missed)
    rows = part_one(options.precision, SMALLEST_MODEL if options.smallest else options.only, options.smallest)
    show(rows, console)
    if options.only is None:
        name = "memory_accuracy-part1" + ("" if options.precision == "fp32" else f"-{options.precision}")
        found = [{**asdict(row), "error": row.error} for row in rows]
        record(name, found, options.out, smallest=options.smallest)
    errors = [abs(row.error) for row in rows]
    missed = []
    if (median := statistics.median(errors)) > MEDIAN_LIMIT:
        missed.append(f"a median error of at most {MEDIAN_LIMIT:.1%}: {median:.3%}")
    if max(errors) > WORST_LIMIT:
        missed.append(f"no error above {WORST_LIMIT:.1%}: {max(errors):.3%}")
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
