"""How far predicted peaks are from measured ones, in every class of transformers that a run can train.

    python -m benchmarks.accuracy_by_class [--only bert] [--checkpointing full] [--at-once 2]

Every class in transformers' mappings for causal, masked and sequence-to-sequence language models and for image
classification is built from its own default configuration, made shallow and narrow, in a process of its own. It is
traced once, in fp32 on the CPU, and trained for two real steps at each of two micro-batches with every allocation
counted by torch's profiler, as in part 1 of `memory_accuracy.py`. The reason is printed for each class that is not
compared: a trace refuses it, or it does not train as it is.

Targets: at least 90% of the classes are compared; of these 95% are predicted within 0.1%, and none is off by more than
1%.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import coverage  # noqa: E402
from benchmarks.forked import each_alone  # noqa: E402
from benchmarks.recording import RESULTS, record  # noqa: E402
from benchmarks.verdict import SMALLEST, unmeasured, verdict  # noqa: E402

COMPARED, WITHIN, CLOSE, WORST = 0.9, 0.95, 0.001, 0.01
"""Targets: share of classes compared; share of these within `CLOSE`; the largest relative error."""
TASKS = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION")
SEQ_LEN = 64
MICRO_BATCHES = (1, 3)
LARGEST = 4 << 30
"""Bytes of a training that is still run."""
PATIENCE = 400.0
"""Seconds for one class."""
ATTEMPTS = ((8, True), (4, True), (2, True), (1, True), (8, False), (1, False))
"""By how much narrower, and whether shallow, in turn: some classes do not take every width, or not every depth."""
WIDTHS = frozenset({
    "hidden_size", "n_embd", "d_model", "intermediate_size", "ffn_dim", "d_ff", "n_inner", "moe_intermediate_size",
    "shared_expert_intermediate_size", "ffn_hidden_size", "encoder_ffn_dim", "decoder_ffn_dim", "dim", "hidden_dim",
    "feed_forward_size", "word_embed_proj_dim", "embedding_size", "q_lora_rank", "kv_lora_rank",
})  # fmt: skip
HEADS = frozenset({
    "num_attention_heads", "n_head", "n_heads", "num_key_value_heads", "num_heads", "encoder_attention_heads",
    "decoder_attention_heads",
})  # fmt: skip
EXPERTS = frozenset({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"})
VOCABULARY, FEW_EXPERTS = 2000, 16


def narrow(values: Mapping[str, Any], divisor: int) -> dict[str, Any]:
    """Return what changes in a configuration for a narrow model: its widths, heads, words and experts."""
    changed: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if key in WIDTHS and value >= 64:
            changed[key] = max(value // divisor // 8 * 8, 16)  # kernels want rows of 16 bytes and more
        elif key in HEADS and value > 1:
            changed[key] = max(value // divisor, 1)
        elif key == "vocab_size":
            changed[key] = min(value, VOCABULARY)
        elif key.endswith("token_id") and value >= VOCABULARY:
            changed[key] = 3
        elif key in EXPERTS:
            changed[key] = min(value, FEW_EXPERTS)
    if {"hidden_size", "num_attention_heads"} <= changed.keys():
        heads = 8 * changed["num_attention_heads"]  # rotations want an even number for each
        changed["hidden_size"] = max(changed["hidden_size"] // heads, 1) * heads
    return changed


def configuration(model_type: str, class_name: str, divisor: int, shallow: bool) -> dict[str, Any]:
    """Return a narrow configuration of a class, shallow if asked; of each part, where it has several."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    def small(values: dict[str, Any]) -> dict[str, Any]:
        return {**narrow(values, divisor), **(coverage.cut(values) if shallow else {})}

    default = CONFIG_MAPPING[model_type]()
    values = default.to_dict()
    missing = coverage.MISSING.get(model_type, {})
    parts = {
        part: {**inner, **small(inner)}
        for part in default.sub_configs
        if part not in missing and isinstance(inner := values.get(part), dict)
    }
    return {"model_type": model_type, "architectures": [class_name], **small(values), **parts, **missing}


def compared(item: str, checkpointing: str) -> str:
    """Trace and train one class, `type|class`; return predicted and measured bytes by micro-batch, or why not."""
    import torch
    import transformers

    from autotune.candidate import Candidate
    from autotune.specs import ModelSpec
    from autotune.worker.errors import CannotTrace
    from autotune.worker.tracing.trace import trace
    from benchmarks.memory_accuracy import measure, request

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rung = Candidate.model_validate({"precision": "fp32", "checkpointing": checkpointing})
    model_type, class_name = item.split("|")
    reason = ""
    for divisor, shallow in ATTEMPTS:
        try:
            spec = ModelSpec(
                name=model_type,
                source="config",
                config=configuration(model_type, class_name, divisor, shallow),
            )
            timeline = trace(request(spec, SEQ_LEN, rung))
            predicted = {size: timeline.allocated(size) for size in MICRO_BATCHES if timeline.covers(size)}
            if max(predicted.values()) > LARGEST:
                return reason or f"takes more than {LARGEST >> 30} GiB as narrow as it builds"
            measured = {size: measure(request(spec, SEQ_LEN, rung.at(size))) for size in predicted}
        except CannotTrace as error:
            return f"cannot be traced: {error}"
        except Exception as error:  # noqa: BLE001 - whatever a model raises is its reason, of the narrowest first
            reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())}"
        else:
            return json.dumps({"predicted": predicted, "measured": measured})
    return reason


def classes(only: str | None) -> list[str]:
    """Return every class once, as `type|class`, of the tasks in their order."""
    from transformers.models.auto import modeling_auto

    found: dict[str, None] = {}
    for task in TASKS:
        for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            if only is None or only in model_type:
                found[f"{model_type}|{names if isinstance(names, str) else names[0]}"] = None
    return list(found)


def row_of(item: str, said: str, seconds: float) -> dict[str, Any]:
    """Return the row of a class from what its process said."""
    model_type, class_name = item.split("|")
    row: dict[str, Any] = {"model_type": model_type, "class": class_name, "seconds": round(seconds, 1)}
    if not said.startswith("{"):
        return {**row, "reason": said[:300]}
    numbers = json.loads(said)
    errors = [predicted / numbers["measured"][size] - 1 for size, predicted in numbers["predicted"].items()]
    return {**row, **numbers, "error": max(errors, key=abs)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help="part of a model type's name")
    parser.add_argument("--checkpointing", default="none", choices=("none", "full"))
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)), help="classes at a time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    import benchmarks.memory_accuracy  # noqa: F401 - the children find all imported

    chosen = ["gpt2|GPT2LMHeadModel"] if options.smallest else classes(options.only)
    if not chosen:
        raise unmeasured("accuracy_by_class", f"no model type has {options.only!r} in its name")
    rows = []
    one = partial(compared, checkpointing=options.checkpointing)
    for answer in each_alone(chosen, one, PATIENCE, options.at_once):
        rows.append(row_of(answer.item, answer.text, answer.seconds))
        said = f"{rows[-1]['error']:+.4%}" if "error" in rows[-1] else rows[-1]["reason"]
        print(f"{rows[-1]['class']:44} {said}", flush=True)
    rows.sort(key=lambda row: chosen.index(f"{row['model_type']}|{row['class']}"))
    errors = [abs(row["error"]) for row in rows if "error" in row]
    if not errors:
        raise unmeasured("accuracy_by_class", str(rows[0]["reason"]))
    within = sum(error <= CLOSE for error in errors) / len(errors)
    print(
        f"{len(errors)} of {len(rows)} classes compared: median error {statistics.median(errors):.4%}, "
        f"{within:.1%} within {CLOSE:.1%}, worst {max(errors):.3%}"
    )
    if options.only is None:
        name = "accuracy_by_class" + ("" if options.checkpointing == "none" else f"-{options.checkpointing}")
        record(name, rows, options.out, smallest=options.smallest, compared=len(errors), within=within,
               worst=max(errors), seq_len=SEQ_LEN, checkpointing=options.checkpointing)  # fmt: skip
    missed = []
    if len(errors) < COMPARED * len(rows):
        missed.append(f"at least {COMPARED:.0%} of the classes are compared: {len(errors)} of {len(rows)}")
    if within < WITHIN:
        missed.append(f"at least {WITHIN:.0%} are within {CLOSE:.1%}: {within:.1%}")
    if max(errors) > WORST:
        missed.append(f"none is off by more than {WORST:.0%}: {max(errors):.2%}")
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
