"""Which of transformers' causal language models can be traced, each with a small configuration.

    python benchmarks/coverage.py [--jobs 2] [--only llama] [--json FILE]

Every class in transformers' mapping for causal language modelling is built from its own default configuration, made
small, and traced for a GPU in a process of its own. The reason is printed for each that does not trace.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LIMIT = 0.9
LAYERS = 2
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers")
"""Only the depth is cut: widths cost nothing under fake tensors, and depend on each other in ways of their own."""
SEQ_LEN = 64


def one(model_type: str) -> str:
    """Trace one model type; return an empty text, or why it cannot be."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from autotune.candidate import Candidate
    from autotune.specs import ModelSpec
    from autotune.train.trace import trace
    from benchmarks.memory_accuracy import request

    transformers.logging.set_verbosity_error()
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    default = CONFIG_MAPPING[model_type]()
    text = default.get_text_config()
    values = text.to_dict()
    depths = {key: values[key] for key in DEPTHS if isinstance(values.get(key), int)}
    small: dict[str, Any] = dict.fromkeys(depths, LAYERS)
    for key, value in values.items():  # one entry a layer, such as the types of the layers
        if isinstance(value, list) and len(value) in depths.values() and len(value) > LAYERS:
            small[key] = value[:LAYERS]
    config = {"model_type": model_type, "architectures": [name if isinstance(name, str) else name[0]]}
    config |= small if text is default else {"text_config": {**values, **small}}
    spec = ModelSpec(name=model_type, source="config", config=config)
    timeline = trace(request(spec, SEQ_LEN, Candidate(precision="bf16"), "cuda:0"))
    return "" if timeline.allocated(2) > 0 else "no memory was counted"


def alone(model_type: str) -> tuple[str, str]:
    """Run `one` in a process of its own."""
    code = f"import sys, runpy; print('REASON', runpy.run_path({__file__!r})['one']({model_type!r}))"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        return model_type, "took more than 240 s"
    if done.returncode == 0:
        return model_type, done.stdout.split("REASON", 1)[1].strip()
    lines = done.stderr.strip().splitlines()
    return model_type, lines[-1][:160] if lines else f"ended with {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="part of a model type's name")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if not options.only or options.only in name]
    reasons: dict[str, str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, reason in pool.map(alone, names):
            reasons[name] = reason
            print(f"{name:32} {reason or 'traced'}", flush=True)
    traced = sum(not reason for reason in reasons.values())
    print(f"{traced} of {len(reasons)} traced: {traced / len(reasons):.1%}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(reasons, indent=1) + "\n", encoding="utf-8")
    return 0 if traced >= LIMIT * len(reasons) else 1


if __name__ == "__main__":
    sys.exit(main())
