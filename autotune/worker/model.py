"""Build a model from a `ModelSpec`: a transformers configuration or the user's own function, no weights."""

from __future__ import annotations

import importlib
import importlib.machinery
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils.data import default_collate

from autotune.candidate import Attention
from autotune.errors import InputError, nearest
from autotune.specs import ModelSpec, Task
from autotune.worker.dataset import Collate, Samples
from autotune.worker.errors import CannotRun
from autotune.worker.trainable import freeze_others

MakeBatch = Callable[[int, int], Mapping[str, Tensor]]
"""`make_batch(micro_batch, seq_len)` of the user's own model: the forward's arguments, on the CPU."""


@dataclass(frozen=True)
class BuiltModel:
    """A model with fresh weights, and what is needed to feed it."""

    model: nn.Module
    task: Task
    tokens_per_sample: int
    """`seq_len` for text, the number of patches (and class token) for images."""
    make_batch: MakeBatch | None = None
    """Only for the task `custom`, and only where it has no dataset."""
    dataset: Samples | None = None
    """The user's own, of which batches are made."""
    collate: Collate = default_collate
    """Makes a batch of its samples."""

    def example(self) -> Mapping[str, Tensor]:
        """Return a batch of one sample of the user's own."""
        if self.dataset is not None:
            with unset_fake_temporarily():  # a trace takes the dataset as it is
                return self.collate([self.dataset[0]])
        assert self.make_batch is not None
        return self.make_batch(1, self.tokens_per_sample)

    @property
    def config(self) -> Any:
        """The transformers configuration; None for a module that has none."""
        return getattr(self.model, "config", None)

    @property
    def attention(self) -> str | None:
        """The attention implementation that the model reports; None where it reports none."""
        return getattr(self.config, "_attn_implementation", None)


def build_model(
    spec: ModelSpec, seq_len: int, device: torch.device, attention: Attention = "sdpa"
) -> BuiltModel:
    """Build the model in fp32, in training mode, straight on `device`; no weights are loaded.

    Initialization draws from torch's default generator, so equal seeds give equal weights on one kind of
    device. On the `meta` device no memory is taken and nothing is drawn; a user's function is then built on
    the CPU. Raises InputError for a configuration, a sequence length or a function that cannot be used, and CannotRun
    for an attention that the model or this machine lacks.
    """
    built = (
        _from_function(spec, seq_len)
        if spec.source == "function"
        else _from_config(spec, seq_len, device, attention)
    )
    if attention != "sdpa" and built.attention != attention:
        raise CannotRun(f"{type(built.model).__name__} has no {attention}")
    if device.type != "meta":
        gather(built.model, device)
    _check_positions(spec, built, seq_len)
    if spec.train:
        freeze_others(built.model, spec.train)
    built.model.train()
    return built


def gather(model: nn.Module, device: torch.device) -> None:
    """Bring parameters and buffers to the device that are not there: a user's, or made by `torch.FloatTensor`."""
    tensors = (*model.parameters(), *model.buffers())
    away = [tensor for tensor in tensors if tensor.device not in {device, torch.device("meta")}]
    if not away:
        return
    if not isinstance(away[0], FakeTensor):
        model.to(device)
        return
    moved: dict[int, nn.Parameter] = {}  # torch refuses to move the fake parameters of a trace
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.device != device:
                if id(parameter) not in moved:  # tied ones stay tied
                    there = parameter.detach().to(device)
                    moved[id(parameter)] = nn.Parameter(there, requires_grad=parameter.requires_grad)
                setattr(module, name, moved[id(parameter)])
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if buffer.device != device:
                setattr(module, name, buffer.to(device))


def _from_config(spec: ModelSpec, seq_len: int, device: torch.device, attention: Attention) -> BuiltModel:
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
        raise CannotRun(f"{attention}: {error}") from error
    except (
        ValueError
    ) as error:  # values that contradict each other, such as heads that do not divide the width
        raise _refused(spec, error) from error
    tokens = _image_tokens(config, model) if task == "image-classification" else seq_len
    return BuiltModel(model, task, tokens)


def _resolve(spec: ModelSpec) -> tuple[Any, Callable[[Any], nn.Module], Task]:
    """Return the configuration object, what builds the model from it, and the task that its class is for."""
    # Late: seconds of imports, which a user's own model does not need.
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    values = dict(spec.config or {})
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
            "such code is only run when you trust it: pass --trust-remote-code"
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


def image_size(config: Any) -> tuple[int, int]:
    """Return height and width (pixels) of a configuration's images; 224 where it says nothing."""
    size = getattr(config, "image_size", 224)
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _check_positions(spec: ModelSpec, built: BuiltModel, seq_len: int) -> None:
    if built.task in {"image-classification", "custom"}:
        return
    limit = getattr(built.config.get_text_config(), "max_position_embeddings", None) or math.inf
    if limit < 0:  # XLNet's way to say that there is none
        limit = math.inf
    for name, module in built.model.named_modules():
        # RoBERTa's kind counts positions from behind the padding index: fewer than its table has rows.
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limit = min(limit, module.num_embeddings - module.padding_idx - 1)
    if seq_len > limit:
        raise InputError(
            f"model {spec.name} has {limit} positions, fewer than the sequence length {seq_len}; "
            f"lower --seq-len to {limit} or less"
        )


def _from_function(spec: ModelSpec, seq_len: int) -> BuiltModel:
    module_name, _, function_name = spec.name.partition(":")
    if spec.path is not None:
        _look_first_in(spec.path, module_name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module exists, but imports something that does not
        raise InputError(
            f"model {spec.name}: there is no Python module {module_name!r} in "
            f"{spec.path or 'the current folder'}"
        ) from error
    function = getattr(module, function_name, None)
    if function is not None and not callable(function):
        raise InputError(
            f"model {spec.name}: {function_name!r} of module {module_name!r} is of type "
            f"{type(function).__name__} and cannot be called; name a function that returns the model"
        )
    if function is None:
        functions = [
            name for name, value in vars(module).items() if callable(value) and not name.startswith("_")
        ]
        raise InputError(
            f"model {spec.name}: module {module_name!r} has no function {function_name!r}; "
            f"{nearest(function_name, functions)}"
        )
    return _check_contract(spec, function(), seq_len)


def _look_first_in(folder: str, module_name: str) -> None:
    """Let an import of the module find the one in `folder`, though one of its name was imported from elsewhere."""
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    package = module_name.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(package, [folder])
    known = sys.modules.get(package)
    if found is not None and known is not None and getattr(known, "__file__", None) != found.origin:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
            del sys.modules[name]


def _check_contract(spec: ModelSpec, returned: object, seq_len: int) -> BuiltModel:
    match returned:
        case (nn.Module() as model, Samples() as dataset):
            built = BuiltModel(model, "custom", seq_len, dataset=dataset)
        case (nn.Module() as model, Samples() as dataset, collate) if callable(collate):
            built = BuiltModel(model, "custom", seq_len, dataset=dataset, collate=collate)
        case (nn.Module() as model, make_batch) if callable(make_batch):
            built = BuiltModel(model, "custom", seq_len, make_batch)
        case _:
            raise InputError(
                f"model {spec.name}: the function must return (nn.Module, make_batch), (nn.Module, dataset) or "
                f"(nn.Module, dataset, collate), it returned {type(returned).__name__}"
            )
    wrong = {str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.dtype != torch.float32}
    if wrong:
        raise InputError(
            f"model {spec.name}: parameters must be torch.float32 (precision is an axis of the search), "
            f"found {', '.join(sorted(wrong))}"
        )
    if getattr(model, "hf_device_map", None):
        raise InputError(
            f"model {spec.name}: it was placed by device_map, which is made for inference: parameters to be "
            "trained may sit on the CPU or on disk, where no gradient reaches them; build it without device_map"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"model {spec.name}: no parameter requires a gradient, so there is nothing to train")
    if built.dataset is not None and not len(built.dataset):
        raise InputError(f"model {spec.name}: the dataset has no samples")
    made = "make_batch(micro_batch, seq_len)" if built.dataset is None else "a batch of the dataset"
    batch = built.example()
    if not isinstance(batch, Mapping) or not batch or not all(isinstance(v, Tensor) for v in batch.values()):
        raise InputError(f"model {spec.name}: {made} must be a dict of tensors, it is {type(batch).__name__}")
    return built


def loss_of(output: object) -> Tensor:
    """Return the loss in a forward's output: the tensor itself, `.loss`, `["loss"]` or the first of a tuple.

    Raises InputError where there is none, or where it is not one number.
    """
    loss: object = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, tuple):
        loss = output[0] if output else None
    elif not isinstance(output, Tensor):
        loss = getattr(output, "loss", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(output).__name__
        )
        raise InputError(
            "the model's forward(**batch) must return the loss as one number: a scalar tensor, an object or "
            f"dict with `loss`, or a tuple that starts with it; it returned {found}"
        )
    return loss.reshape(())
