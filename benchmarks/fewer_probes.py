"""How many probes the memory model spares: whole runs with it and without it, for the same winner.

    python -m benchmarks.fewer_probes [--only gpt-2] [--out FOLDER]

Each case is tuned twice on the cpu device by the strategy `graph`, which walks the same way with predictions and
without, first with `--no-predict`, then with predictions and an empty cache of
traces, so that tracing is paid for. Both runs measure for real and prove their winner. Probes are counted with those
that ran out of memory; the proof is not counted. Where the winners differ, the last column gives the time of the
predicted run's global step over that of the other: on a busy machine the speeds of neighbouring micro-batches differ
by less than their noise.

Targets, over all cases: at most 0.6 as many probes as without it, at most a quarter as many that run out of memory,
and the same rung in every case. No number was asked first: these were set on 2026-11-22, after the record of the day
before had shown 26 probes against 53, 1 out of memory against 12, and the same rung in all of its cases.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.api import load_run, tune
from autotune.errors import NothingFits
from autotune.outcome import Oom
from autotune.run.best import Best
from autotune.techniques.families import title as title_of
from autotune.tracing.cache import VARIABLE
from benchmarks.memory_accuracy import model_spec
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

_SMALL = {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 8, "num_attention_heads": 6}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("gpt2", {"n_embd": 384, "n_layer": 8, "n_head": 6, "vocab_size": 8192}),
    "Llama": ("llama-3.2-1b", {**_SMALL, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 8192}),
    "BERT": ("bert-base", {**_SMALL, "vocab_size": 8192}),
    "tiny": ("tiny-gpt2", {}),
    "ViT": ("vit-base", _SMALL),
    "T5": (
        "t5-base",
        {
            "d_model": 384,
            "d_ff": 1152,
            "num_layers": 6,
            "num_decoder_layers": 6,
            "num_heads": 6,
            "vocab_size": 8192,
        },
    ),
}
"""By name: preset, and what makes it small enough (12 to 24M parameters) for whole runs on a CPU."""
SMALLEST_CASE = ("tiny", "sim:h100-80gb")
CASES = (
    ("GPT-2", "cpu:1GiB"),  # the baseline fits at small micro-batches only
    ("GPT-2", "cpu:640MiB"),  # optimizer state does not fit
    ("GPT-2", "cpu:520MiB"),  # nothing but full offload fits
    ("Llama", "cpu:1GiB"),
    ("BERT", "cpu:900MiB"),
    ("ViT", "cpu:768MiB"),
    ("T5", "cpu:1200MiB"),
)
SEQ_LEN = 128
TARGET = "16 samples"
PROBES, OOM = 0.6, 0.25
"""Targets: shares of those without predictions."""


def run(model: str, device: str, predict: bool, folder: Path, smallest: bool) -> dict[str, Any]:
    """Tune once and return what it took."""
    os.environ[VARIABLE] = str(folder / "cache")
    runs = folder / ("predicted" if predict else "blind")
    config = folder / f"{model.lower()}.json"
    config.write_text(json.dumps(model_spec(*MODELS[model]).config))
    options: dict[str, Any] = {} if model == "ViT" else {"seq_len": SEQ_LEN}
    options |= {"sample_time": "2s", "proof_time": "4s"}
    if smallest:
        options |= {"seq_len": 32, "sample_time": "0.3s", "proof_time": "0.5s", "max_probes": 1}
    began = time.monotonic()
    best: Best | None = None
    with contextlib.suppress(NothingFits):
        best = tune(
            model=str(config), device=device, target_global_batch=TARGET, predict=predict, strategy="graph",
            speed_tolerance=0.5, runs=runs, **options,
        )  # fmt: skip
    seconds = time.monotonic() - began
    done = load_run("last", runs)
    history = done.record.history
    return {
        "probes": len(history),
        "oom": sum(isinstance(trial.outcome, Oom) for trial in history),
        "winner": f"{title_of(best.candidate)} x {best.candidate.micro_batch}" if best else "nothing fits",
        "rung": title_of(best.candidate) if best else "nothing fits",
        "global_step": best.seconds_per_global_step if best else None,
        "seconds": round(seconds, 1),
        "trace_seconds": round(sum(entry.seconds for entry in done.record.traced), 1),
        "errors": [error for trial in history if (error := trial.error()) is not None],
        "tried": [f"{title_of(trial.candidate)} x {trial.candidate.micro_batch}: {trial.outcome.kind}"
                  for trial in history],
    }  # fmt: skip


def main() -> int:
    """Tune every case twice, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="Models whose name holds this.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    console = Console(width=160)
    table = Table(
        "case", "probes", "without", "OOM", "without", "winner", "without", "seconds", "without", "step"
    )
    rows: list[dict[str, Any]] = []
    for model, device in (SMALLEST_CASE,) if options.smallest else CASES:
        if options.only.lower() not in model.lower():
            continue
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            blind = run(model, device, False, Path(folder), options.smallest)
            ours = run(model, device, True, Path(folder), options.smallest)
        ratio = ours["global_step"] / blind["global_step"] if ours["global_step"] else 1.0
        rows.append(
            {"model": model, "device": device, "predicted": ours, "blind": blind, "step_ratio": ratio}
        )
        cells = [(ours[key], blind[key]) for key in ("probes", "oom", "winner", "seconds")]
        table.add_row(f"{model} {device}", *(str(cell) for pair in cells for cell in pair), f"{ratio:.2f}")
        console.print(f"{model} {device}: {ours['probes']} probes against {blind['probes']}")
    if not rows:
        raise unmeasured("fewer_probes", f"no model has {options.only!r} in its name")
    console.print(table)
    totals = {
        f"{key}_{mode}": sum(row[mode][key] for row in rows)
        for key in ("probes", "oom", "seconds")
        for mode in ("predicted", "blind")
    }
    if not totals["probes_blind"]:
        raise unmeasured(
            "fewer_probes", "no probe was launched: " + "; ".join(row["blind"]["winner"] for row in rows)
        )
    same = sum(row["predicted"]["winner"] == row["blind"]["winner"] for row in rows)
    same_rung = sum(row["predicted"]["rung"] == row["blind"]["rung"] for row in rows)
    console.print(
        f"{totals['probes_predicted']} probes against {totals['probes_blind']} "
        f"({totals['probes_predicted'] / totals['probes_blind']:.2f} of them), OOM {totals['oom_predicted']} against "
        f"{totals['oom_blind']}; same winner in {same}, same rung in {same_rung} of {len(rows)} cases"
    )
    summary = {"same_winner": same, "same_rung": same_rung, **totals}
    console.print(record("fewer_probes", rows, options.out, smallest=options.smallest, **summary))
    missed = [] if same_rung == len(rows) else [f"the same rung in every case: {same_rung} of {len(rows)}"]
    if not options.smallest:
        for key, share in (("probes", PROBES), ("oom", OOM)):
            ours, blind = totals[f"{key}_predicted"], totals[f"{key}_blind"]
            if ours > share * blind:
                missed.append(
                    f"{key} of at most {share:g} of those without predictions: {ours} against {blind}"
                )
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
