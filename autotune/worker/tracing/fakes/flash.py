"""A stand-in for the flash-attn package in traces: torch's own flash kernel, of the same source, allocates as it does.

The package wants a GPU even to be installed, and a trace has none. transformers runs the code that it has for the
package. Not covered: rows of several documents or with padding, whose lengths the package reads from the data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from autotune.worker.errors import CannotRun
from autotune.worker.replacing import replaced

PACKAGE = "flash_attn"


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_others: Any,
) -> Tensor:
    """Return attention of (batch, sequence, heads, width), as the package's function of this name and arguments.

    Windows, soft caps and determinism change no sizes.
    """
    head = q.shape[-1]
    scale = head**-0.5 if softmax_scale is None else softmax_scale
    if head % 8:  # FlashAttnFunc.forward in flash_attn/flash_attn_interface.py
        q, k, v = (torch.nn.functional.pad(part, [0, 8 - head % 8]) for part in (q, k, v))
    result: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p, causal, False, scale=scale
    )[0]
    return result.transpose(1, 2)[..., :head]


def _of_lengths(*_arguments: Any, **_others: Any) -> Tensor:
    raise CannotRun(
        "attention",
        "context",
        "flash-attn with padded or packed rows reads their lengths from the data, which a trace does not have; probe "
        "the model instead",
    )


@contextmanager
def fake_flash() -> Iterator[None]:
    """Provide the package, and let transformers believe in it."""
    from transformers import PreTrainedModel, modeling_flash_attention_utils

    package = _module(
        PACKAGE,
        flash_attn_func=flash_attn_func,
        flash_attn_varlen_func=_of_lengths,
        flash_attn_with_kvcache=_of_lengths,
    )
    padding = _module(f"{PACKAGE}.bert_padding", pad_input=_of_lengths, unpad_input=_of_lengths)
    real = {name: sys.modules.pop(name, None) for name in (PACKAGE, padding.__name__)}
    sys.modules |= {PACKAGE: package, padding.__name__: padding}
    try:
        with replaced(
            [
                (modeling_flash_attention_utils, "is_flash_attn_2_available", lambda: True),
                (modeling_flash_attention_utils, "_loaded_implementation", None),
                (PreTrainedModel, "_flash_attn_import_error", lambda *_, **__: None),
            ]
        ):
            yield
    finally:
        for name, module in real.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(contents)
    return module
