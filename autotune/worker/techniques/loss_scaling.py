"""Dynamic loss scaling for fp16, whose smallest number is 6e-8: gradients are made large before they are rounded to it.

torch's GradScaler does the arithmetic: it starts at 2^16, halves the scale after a step whose gradients overflowed
(that step is skipped), and doubles it after 2000 steps that did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from autotune.worker.training import StepOptimizer

INITIAL = 2.0**16
"""Where the scale starts: GradScaler's own default, and so that of accelerate and transformers."""
LEAST = 1.0
"""A scale below this makes gradients smaller, not larger: GradScaler's documentation calls that a sign of an error."""


class ScaledOptimizer:
    """An optimizer for gradients of a scaled loss: it divides them by the scale, and leaves out steps that overflowed.

    `scale` is for the loss, and changes its gradients alone. `unscale` may be called before `step`, once, for whoever
    looks at the gradients; `step` does so otherwise.
    """

    def __init__(
        self, optimizer: StepOptimizer, parameters: Iterable[nn.Parameter], device: torch.device
    ) -> None:
        self._optimizer = optimizer
        self._scaler = GradScaler(device.type, init_scale=INITIAL)
        self._scaler.scale(torch.zeros((), device=device))  # makes the scale, which `_Scale` reads
        self._whole = _Whole(optimizer, [parameter for parameter in parameters if parameter.requires_grad])
        self._unscaled = False
        self.skipped = 0
        """Steps that were left out so far, because a gradient was infinite or NaN."""
        self.collapsed = False
        """Whether the scale has fallen so far that none helps: the gradients themselves are not finite."""

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss as it is; its gradients are those of the loss times the scale."""
        factor = self._scaler._scale
        assert factor is not None
        scaled: Tensor = _Scale.apply(loss, factor)
        return scaled

    def unscale(self) -> None:
        """Divide the gradients by the scale, in place."""
        self._scaler.unscale_(self._whole)
        self._unscaled = True

    def step(self) -> None:
        """Divide the gradients by the scale, update unless one is infinite or NaN, and adapt the scale."""
        if not self._unscaled:
            self.unscale()
        taken = self._whole.steps
        self._scaler.step(self._whole)
        self._scaler.update()
        self._unscaled = False
        if self._whole.steps == taken:
            self.skipped += 1
            self.collapsed = self._scaler.get_scale() < LEAST

    def zero_grad(self) -> None:
        """Drop the gradients, so that their memory is free until the next backward pass."""
        self._optimizer.zero_grad()

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of the optimizer's state."""
        return self._optimizer.state_tensors()


class _Whole:
    """What GradScaler wants of an optimizer: all parameters in one group, and a step that it can leave out."""

    def __init__(self, optimizer: StepOptimizer, parameters: list[nn.Parameter]) -> None:
        self._optimizer = optimizer
        self.param_groups = [{"params": parameters}]
        self.steps = 0

    def step(self) -> None:
        self._optimizer.step()
        self.steps += 1


class _Scale(torch.autograd.Function):  # type: ignore[misc]  # mypy does not follow torch
    """Multiplies gradients alone, so that whoever holds the loss reads it as it is."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, factor: Tensor) -> Tensor:
        ctx.factor = factor.clone()  # the scale changes in place
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return upstream[0] * ctx.factor, None
