"""LayerDrop: models that draw a number before a layer, in training, and skip the layer where it is below a rate.

A step that skips layers takes less memory than one that skips none, which comes sooner or later. So what is traced, and
the steps of a probe that tell its memory, skip none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def decides(drawn: Tensor) -> bool:
    """Tell whether a tensor of random numbers is a single one, shape () or (1,), as a decision takes it.

    Those of stochastic depth have a dimension for each of the activation's, and decide about samples.
    """
    single: bool = drawn.dim() <= 1 and drawn.numel() == 1 and drawn.is_floating_point()
    return single


def largest_draw(like: Tensor) -> Tensor:
    """Return the largest number that `torch.rand` draws, in the shape and type of another: no rate is above it."""
    one = torch.ones(like.shape, dtype=like.dtype, device="cpu")
    return one.nextafter(torch.zeros_like(one))


def skips_layers(model: nn.Module) -> bool:
    """Tell whether a model skips layers in training: a rate in a module, or its config, is above zero.

    The name of a rate is `layerdrop` in some form, as in `encoder_layerdrop` and `layer_drop_rate`.
    """
    holders = {
        id(held): held for module in model.modules() for held in (module, getattr(module, "config", None))
    }
    return any(
        "layerdrop" in name.replace("_", "").lower() and isinstance(value, float) and value > 0
        for held in holders.values()
        for name, value in getattr(held, "__dict__", {}).items()
    )


class EveryLayerKept(TorchFunctionMode):  # type: ignore[misc]  # mypy does not follow torch
    """While open, numbers that `torch.rand` draws one at a time are as large as they get: layers are kept.

    Generators move on as without it. Not covered: compiled code, whose compiler would compile for it and once more
    without it, and models that draw from Python's or NumPy's generators.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.rand and decides(result):
            result.detach().copy_(largest_draw(result))
        return result
