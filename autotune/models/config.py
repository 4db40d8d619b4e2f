"""Read a transformers configuration and say, without transformers, what is certainly wrong with it.

Whether the installed transformers knows the `model_type` and builds the model is for the worker to tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.printable import quoted
from autotune.special_floats import tagged
from autotune.units import MIB
from autotune.user_files import parse_json_value, read_text

LARGEST = 4 * MIB
"""Bytes. Configurations take kilobytes; a larger file is something else (weights, most likely)."""

SIZES = (
    "vocab_size", "hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers",
    "num_attention_heads", "n_head", "num_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "n_inner", "d_ff", "ffn_dim", "max_position_embeddings", "n_positions", "image_size", "patch_size",
    "num_local_experts",
)  # fmt: skip
"""Keys that shape a model: numbers above zero wherever they are given (a few may be null)."""

LARGEST_SIZE = 10**9
"""Of any of those; the largest vocabulary that was ever trained has a few million tokens."""
MOST_LAYERS = 10_000
"""Of what repeats: building a model without memory still makes every layer."""
_LAYERS = re.compile(r"(^|_)(n_?)?(layers?|blocks|depths?|experts)$")

DIVISIBLE = (("hidden_size", "num_attention_heads"), ("n_embd", "n_head"))
"""Width and number of heads; a configuration with a `head_dim` of its own is free of it."""

_OTHER_FILES = {
    "tokenizer_class": "a tokenizer's configuration",
    "peft_type": "the configuration of a PEFT adapter",
    "weight_map": "the index of a checkpoint's weights",
    "image_processor_type": "an image processor's configuration",
    "_from_model_config": "a configuration for generation",
}


def read_config(path: Path, trust_remote_code: bool) -> dict[str, Any]:
    """Return the configuration in `path` (a config.json, or a folder that holds one).

    Raises InputError when it cannot be read, is no model's configuration, or cannot be trained as it is.
    """
    if os.path.isdir(path):
        file = path / "config.json"
        if not os.path.exists(file):
            raise InputError(f"model folder {path} holds no config.json{_found_instead(path)}")
        path = file
    text = read_text(path, f"the model's configuration {path}", LARGEST)
    return parse_config(text, str(path), trust_remote_code, code_at=str(path.parent.resolve()))


def parse_config(text: str, source: str, trust_remote_code: bool, code_at: str) -> dict[str, Any]:
    """Parse and check the text of a config.json that came from `source`.

    A configuration with code of its own is refused unless it is trusted. A trusted one has `code_at` (hub
    name or folder) written into its references, so that a worker finds the code without the file. Numbers that are
    not finite are written as transformers does. Raises InputError with every problem found.
    """
    config = tagged(parse_json_value(text, source))
    if not isinstance(config, dict):
        raise InputError(
            f"{source} holds a {type(config).__name__}, not the key-value pairs of a configuration"
        )
    if problems := _problems(config, trust_remote_code):
        raise InputError(f"{source}: {problem}" for problem in problems)
    if isinstance(config.get("auto_map"), dict):
        config["auto_map"] = {key: _located(value, code_at) for key, value in config["auto_map"].items()}
    return config


def _problems(config: dict[str, Any], trust_remote_code: bool) -> list[str]:
    if "model_type" not in config:
        known = next((what for key, what in _OTHER_FILES.items() if key in config), None)
        if known:
            return [f"this is {known}, not a model's; give the model's config.json"]
        return ["the key model_type is missing, so this is no transformers configuration"]
    problems = []
    if not isinstance(config["model_type"], str) or not config["model_type"]:
        problems.append(f"model_type must be the name of an architecture, not {quoted(config['model_type'])}")
    if config.get("auto_map") and not trust_remote_code:
        problems.append(
            "this model brings its own code (auto_map), which is not run unless you pass "
            "--trust-remote-code; read the code first"
        )
    if config.get("quantization_config"):
        problems.append(
            "this configuration is of a quantized checkpoint (quantization_config), which is not trained; "
            "give the configuration of the original model"
        )
    wrong = [key for key in SIZES if key in config and not _is_size(config[key])]
    problems.extend(f"{key} must be a whole number above zero, not {quoted(config[key])}" for key in wrong)
    problems.extend(_oversized(config))
    for width, heads in DIVISIBLE:
        if wrong or config.get("head_dim") or not isinstance(config.get(width), int):
            continue
        if isinstance(config.get(heads), int) and config[width] % config[heads]:
            problems.append(f"{width} ({config[width]}) is not a multiple of {heads} ({config[heads]})")
    return problems


def _oversized(config: dict[str, Any], inside: str = "") -> Iterator[str]:
    """Give what no model is as large as: a worker would build it without an end. Looks into parts, such as vision's."""
    for key, value in config.items():
        numbers = value if isinstance(value, list) else [value]
        most = MOST_LAYERS if _LAYERS.search(key) else LARGEST_SIZE if key in SIZES else None
        if most is not None and any(isinstance(number, int) and number > most for number in numbers):
            yield f"{inside}{key}: {quoted(value)} is more than {most:,}, and no model has so many"
        if isinstance(value, dict):
            yield from _oversized(value, f"{inside}{key}.")


def _is_size(value: object) -> bool:
    """Null stands for "derived from another"; a list gives one size a stage (or height and width)."""
    if isinstance(value, list):
        return bool(value) and all(_is_size(part) for part in value)
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


def _located(reference: object, code_at: str) -> object:
    """Write where the code is into a reference, as transformers does: `owner/name--module.Class`."""
    if isinstance(reference, list):
        return [_located(part, code_at) for part in reference]
    if isinstance(reference, str) and "--" not in reference:
        return f"{code_at}--{reference}"
    return reference


def _found_instead(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return "; it holds a PEFT adapter, so give the folder of its base model"
    configs = sorted(file.parent.name for file in folder.glob("*/config.json"))
    return f"; its folders {', '.join(configs[:5])} do" if configs else ""
