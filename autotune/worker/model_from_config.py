"""Build a model from a transformers configuration, no weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autotune.candidate import Attention
from autotune.errors import InputError, nearest
from autotune.special_floats import untagged
from autotune.specs import ModelSpec, Task
from autotune.worker.built_model import BuiltModel, image_size
from autotune.worker.errors import CannotRun


def from_config(spec: ModelSpec, seq_len: int, device: torch.device, attention: Attention) -> BuiltModel:
    """Build a configuration's model in fp32 on a device. Raises InputError, and CannotRun for a missing attention."""
    config, model_class, task = _resolve(spec)
    if attention != "sdpa":  # transformers' own choice where it is left to it
        config._attn_implementation = attention
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        if getattr(part, "use_cache", None) is not None:
            part.use_cache = False
    config.dtype = torch.float32
    try:
        with torch.device(device):
            model = model_class(config)
    except ImportError as error:
        if attention == "sdpa":
            raise
        raise CannotRun("attention", "package", f"{attention}: {error}") from error
    except ValueError as error:
        # Values that contradict each other, such as heads that do not divide the width.
        raise _refused(spec, error) from error
    tokens = _image_tokens(config, model) if task == "image-classification" else seq_len
    return BuiltModel(model, task, tokens)


def import_class(model_type: str, architectures: Sequence[str]) -> None:
    """Import all that building a model of a type imports, but for code that comes with a model. Builds nothing.

    Raises what `from_config` raises where the two name no model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: F401

    if _is_known(model_type):
        config = AutoConfig.for_model(model_type, architectures=list(architectures))
        name, _ = _choose_class(ModelSpec(name=model_type, source="config"), model_type, config)
        getattr(importlib.import_module("transformers"), name)


def _resolve(spec: ModelSpec) -> tuple[Any, Callable[[Any], nn.Module], Task]:
    """Return the configuration object, what builds the model from it, and the task that its class is for."""
    # Late: seconds of imports, which a user's own model does not need.
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    values = untagged(dict(spec.config or {}))
    model_type = values.pop("model_type", None)
    if model_type is None:
        raise InputError(f"model {spec.name}: its configuration has no model_type, so its class is unknown")
    if not _is_known(model_type):
        return _resolve_remote(spec, model_type, values)
    try:
        config = AutoConfig.for_model(model_type, **values)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise _refused(spec, error) from error
    name, task = _choose_class(spec, model_type, config)
    model_class = getattr(importlib.import_module("transformers"), name)
    return _part_for(model_class, config), model_class, task


def _part_for(model_class: Any, config: Any) -> Any:
    """Return what a model class takes of a configuration: of one for text and images, a language model its own part."""
    for name, kind in getattr(config, "sub_configs", {}).items():
        if kind is model_class.config_class and not isinstance(config, kind):
            return getattr(config, name)
    return config


def _refused(spec: ModelSpec, error: Exception) -> InputError:
    return InputError(f"model {spec.name}: transformers refuses its configuration: {error}")


def _is_known(model_type: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return model_type in CONFIG_MAPPING_NAMES


def _resolve_remote(
    spec: ModelSpec, model_type: str, values: Mapping[str, Any]
) -> tuple[Any, Callable[[Any], nn.Module], Task]:
    """Resolve a type that transformers does not know: only code that comes with the model can build it."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    auto_map = values.get("auto_map", {})
    if not auto_map:
        hint = nearest(model_type, CONFIG_MAPPING_NAMES)
        raise InputError(f"model {spec.name}: transformers knows no model_type {model_type!r}; {hint}")
    if not spec.trust_remote_code:
        raise InputError(
            f"model {spec.name}: its type {model_type!r} is built by code that comes with the model; "
            "such code is only run when you trust it: pass --trust-remote-code",
            about="trust_remote_code",
        )
    if "AutoModelForCausalLM" not in auto_map:
        raise InputError(
            f"model {spec.name}: its own code offers {', '.join(sorted(auto_map))}, but no "
            "AutoModelForCausalLM; write a module:function that builds it and makes its batches"
        )
    path = Path(spec.name)
    source = str(path.parent if path.is_file() else path)
    config = AutoConfig.from_pretrained(source, trust_remote_code=True)

    def build(config: Any) -> nn.Module:
        return AutoModelForCausalLM.from_config(config, trust_remote_code=True)

    return config, build, "causal-lm"


def _choose_class(spec: ModelSpec, model_type: str, config: Any) -> tuple[str, Task]:
    """Choose by the configuration's `architectures`, else the class that transformers pairs with its type."""
    from transformers.models.auto import modeling_auto as auto

    # Sequence-to-sequence before masked (BART has both), masked before causal (BERT has both).
    tasks: tuple[tuple[Task, Mapping[str, Any]], ...] = (
        ("seq2seq-lm", auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("masked-lm", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("causal-lm", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("image-classification", auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    )
    offered: dict[str, Task] = {}
    for task, mapping in tasks:
        names = mapping.get(model_type, ())
        for name in (names,) if isinstance(names, str) else names:
            offered.setdefault(name, task)
    named = tuple(config.architectures or ())
    for name in named:
        if name in offered:
            return name, offered[name]
    # A bare encoder or decoder (`BertModel`, or nothing at all) trains with its type's first head.
    if offered and all(name.endswith(("Model", "ForPreTraining")) for name in named):
        return next(iter(offered.items()))
    asked = ", ".join(named) or model_type
    known = f"what can be trained of a {model_type} is {', '.join(offered)}; " if offered else ""
    raise InputError(
        f"model {spec.name}: {asked} is no model for causal, masked or sequence-to-sequence language modelling "
        f"nor image classification; {known}write a module:function that builds it and makes its batches"
    )


def _image_tokens(config: Any, model: nn.Module) -> int:
    """Return patches plus class token; 1 for a model that does not cut images into patches."""
    patch = getattr(config, "patch_size", None)
    if patch is None:
        return 1
    height, width = image_size(config)
    patch_height, patch_width = (patch, patch) if isinstance(patch, int) else patch
    has_class_token = any(name.endswith("cls_token") for name, _ in model.named_parameters())
    return (height // patch_height) * (width // patch_width) + has_class_token
