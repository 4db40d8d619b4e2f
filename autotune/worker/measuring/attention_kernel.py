"""Which kernel computes torch's scaled dot-product attention, seen where a model calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autotune.outcome import AttentionKernel

_MADE_BY: tuple[tuple[str, AttentionKernel], ...] = (
    ("ScaledDotProductFlashAttention", "flash"),  # `...ForCpu` too, a processor's kernel of the same kind
    ("ScaledDotProductEfficientAttention", "memory-efficient"),
    ("ScaledDotProductCudnnAttention", "cuDNN"),
)
"""How the backward node is called that each fused operator leaves; the math kernel leaves those of its parts."""
_STEPS = 4
"""Nodes between a result and its kernel, at most: what cuts off padding, and views."""


class AttentionKernels(TorchFunctionMode):  # type: ignore[misc]  # mypy does not follow torch
    """While open, notes which kernels `scaled_dot_product_attention` chose in passes that will have a backward.

    It is the kernel that ran, not one asked for: torch chooses by device, types, mask and sizes. Not covered: compiled
    code, for which there is `compiled_attention`, and attention that a model or a package computes by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: set[AttentionKernel] = set()

    @property
    def kernels(self) -> tuple[AttentionKernel, ...]:
        """Those seen so far, by name."""
        return tuple(sorted(self._found))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.scaled_dot_product_attention and result.grad_fn is not None:
            self._found.add(_kernel_of(result))
        return result


_OPERATORS: tuple[tuple[str, AttentionKernel], ...] = (
    ("aten._scaled_dot_product_flash_attention", "flash"),  # `..._for_cpu` too
    ("aten._scaled_dot_product_efficient_attention", "memory-efficient"),
    ("aten._scaled_dot_product_cudnn_attention", "cuDNN"),
)
"""How the fused operators are called in what torch's compiler writes, which calls them as they are."""


def compiled_attention(attention: str | None) -> tuple[AttentionKernel, ...]:
    """Return the kernels of attention that code compiled in this process calls, by name; `attention` is the model's.

    It is read in the modules that torch's compiler made or took from its cache, so nothing runs for it: a pass that is
    watched would be an eager one, with an eager pass's memory, where a probe has shown only that the compiled one fits.
    The math kernel is not in them, for the compiler fuses its parts with what is around them: it is what remains of
    torch's attention ("sdpa"). Empty where a module cannot be read any more.
    """
    from torch._inductor.codecache import PyCodeCache

    found: set[AttentionKernel] = set()
    try:
        for module in PyCodeCache.modules:
            code = Path(str(module.__file__)).read_text("utf-8")
            found.update(kernel for name, kernel in _OPERATORS if name in code)
    except OSError:
        return ()
    return tuple(sorted(found)) or (("math",) if attention == "sdpa" else ())


def _kernel_of(result: Tensor) -> AttentionKernel:
    node: Any = result.grad_fn
    for _ in range(_STEPS):
        name = node.name()
        for beginning, kernel in _MADE_BY:
            if name.startswith(beginning):
                return kernel
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None:
            break
    return "math"
