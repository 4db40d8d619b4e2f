"""Which of transformers' causal language models can be traced, each with a small configuration.

    python -m benchmarks.coverage [--device cpu] [--only llama]

Every class in transformers' mapping for causal language modelling is built from its own default configuration, made
small, and traced in a process of its own. The reason is printed for each that does not trace.

Target: at least 90% trace.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.forked import each_alone  # noqa: E402
from benchmarks.recording import RESULTS, record  # noqa: E402
from benchmarks.verdict import SMALLEST, unmeasured, verdict  # noqa: E402

LIMIT = 0.9
LAYERS = 2
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers")
"""Only the depth is cut: widths cost nothing under fake tensors, and depend on each other in ways of their own."""
SEQ_LEN = 64
TRACED = "traced"
PATIENCE = 240.0
"""Seconds for one class."""
MISSING: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8]},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip
"""What a default configuration leaves out and its class cannot do without, or what depends on the depth."""


class Result(NamedTuple):
    """What became of one class."""

    model_type: str
    model_class: str
    reason: str
    """Why it was not traced; empty where it was."""
    seconds: float


def small(model_type: str, shallow: bool) -> dict[str, Any]:
    """Return a configuration of the type's causal language model, of `LAYERS` layers or as deep as its default."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = class_of(model_type)
    wanted = getattr(transformers, name).config_class
    default = CONFIG_MAPPING[model_type]()
    parts = [
        part for part, kind in default.sub_configs.items() if kind is wanted and type(default) is not wanted
    ]
    part = parts[0] if parts else "text_config" if "text_config" in default.sub_configs else None
    values = (default if part is None else getattr(default, part)).to_dict()
    changed = MISSING.get(model_type, {})
    if shallow:
        changed = {**cut(values), **changed}
    whole = {"model_type": model_type, "architectures": [name]}
    return {**whole, **changed} if part is None else {**whole, part: {**values, **changed}}


def cut(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that make it `LAYERS` deep."""
    depths = {key: values[key] for key in DEPTHS if isinstance(values.get(key), int)}
    changed: dict[str, Any] = dict.fromkeys(depths, LAYERS)
    for key, value in values.items():  # one entry a layer, such as their types, or by their numbers
        if isinstance(value, list) and len(value) in depths.values() and len(value) > LAYERS:
            changed[key] = value[:LAYERS]
        elif key == "per_layer_config" and isinstance(value, dict):
            changed[key] = {layer: entry for layer, entry in value.items() if int(layer) < LAYERS}
    return changed


def class_of(model_type: str) -> str:
    """Return the name of a type's causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return name if isinstance(name, str) else name[0]


def one(model_type: str, device: str) -> str:
    """Trace one model type; return `TRACED`, or why it cannot be."""
    import transformers

    from autotune.candidate import Candidate
    from autotune.specs import ModelSpec
    from autotune.worker.errors import CannotTrace
    from autotune.worker.tracing.trace import trace
    from benchmarks.memory_accuracy import request

    transformers.logging.set_verbosity_error()
    candidate = Candidate(precision="bf16" if device != "cpu" else "fp32", micro_batch=2)

    def attempt(shallow: bool) -> str:
        spec = ModelSpec(name=model_type, source="config", config=small(model_type, shallow))
        timeline = trace(request(spec, SEQ_LEN, candidate, device))
        return TRACED if timeline.allocated(2) > 0 else "no memory was counted"

    try:
        return attempt(shallow=True)
    except CannotTrace as error:
        return f"cannot be traced: {error}"
    except Exception:  # noqa: BLE001 - whatever it is: parts of a configuration may depend on its depth
        try:
            return attempt(shallow=False)
        except Exception as error:  # noqa: BLE001 - whatever a model raises is its reason
            return f"{type(error).__name__}: {' '.join(str(error).split())}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda:0", choices=("cuda:0", "cpu"), help="what is traced for")
    parser.add_argument("--only", help="part of a model type's name")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    import autotune.worker.tracing.trace  # noqa: F401 - the children find all imported

    chosen = [
        model_type
        for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if (model_type == "gpt2" if options.smallest else options.only is None or options.only in model_type)
    ]
    if not chosen:
        raise unmeasured("coverage", f"no model type has {options.only!r} in its name")
    results = []
    at_once = len(os.sched_getaffinity(0))
    for answer in each_alone(chosen, partial(one, device=options.device), PATIENCE, at_once):
        said = answer.text[:300]
        reason = "" if said == TRACED else said
        results.append(Result(answer.item, class_of(answer.item), reason, round(answer.seconds, 1)))
        print(f"{answer.item:32} {said}", flush=True)
    results.sort(key=lambda result: chosen.index(result.model_type))
    traced = sum(not result.reason for result in results)
    share = traced / len(results)
    print(f"{traced} of {len(results)} traced: {share:.1%}")
    if options.only is None:
        rows = [result._asdict() for result in results]
        name = "coverage" + ("-cpu" if options.device == "cpu" else "")
        record(
            name, rows, options.out, smallest=options.smallest, traced=traced, share=share, seq_len=SEQ_LEN
        )
    return verdict([] if share >= LIMIT else [f"at least {LIMIT:.0%} trace: {share:.1%}"])


if __name__ == "__main__":
    sys.exit(main())
