"""Build a model from a `ModelSpec`: a transformers configuration or the user's own function, no weights."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from autotune.candidate import Attention
from autotune.errors import InputError
from autotune.specs import ModelSpec
from autotune.worker.built_model import BuiltModel
from autotune.worker.errors import CannotRun
from autotune.worker.model_from_config import from_config
from autotune.worker.model_from_function import from_function
from autotune.worker.trainable import freeze_others


def build_model(
    spec: ModelSpec, seq_len: int, device: torch.device, attention: Attention = "sdpa"
) -> BuiltModel:
    """Build the model in fp32, in training mode, straight on `device`; no weights are loaded.

    Initialization draws from torch's default generator, so equal seeds give equal weights on one kind of
    device. On the `meta` device no memory is taken and nothing is drawn; a user's function is then built on
    the CPU. Raises InputError for a configuration, a sequence length or a function that cannot be used, and CannotRun
    for an attention that the model or this machine lacks.
    """
    if spec.source == "function":
        built = from_function(spec, seq_len)
    else:
        with _Undrawn() if device.type == "meta" else nullcontext():
            built = from_config(spec, seq_len, device, attention)
    if attention != "sdpa" and built.attention != attention:
        raise CannotRun("attention", "context", f"{type(built.model).__name__} has no {attention}")
    if device.type != "meta":
        gather(built.model, device)
    _check_positions(spec, built, seq_len)
    if spec.train:
        freeze_others(built.model, spec.train)
    built.model.train()
    return built


class _Undrawn(TorchFunctionMode):  # type: ignore[misc]  # torch.overrides has no types
    """Leaves out draws into tensors on the meta device, which hold nothing: torch runs each through much Python."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _DRAWS and (tensor := args[0] if args else given["tensor"]).is_meta:
            return tensor
        return func(*args, **given)


_DRAWS = frozenset(
    {nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_}
)


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
            f"lower --seq-len to {limit} or less",
            about="seq_len",
        )
