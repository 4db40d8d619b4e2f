"""The optimizer step inside the backward pass: no gradient lives longer than its parameter's update takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from autotune.worker.techniques.optimizer import MakeOptimizer, state_tensors


class BackwardOptimizer:
    """One torch optimizer for each parameter, stepped by autograd as soon as the gradient is complete.

    A parameter that several layers share is updated once, after the last of them. There is no moment at which all
    gradients are there, so they cannot be clipped by their common norm, and `gradient_norm` finds none.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make: MakeOptimizer) -> None:
        self._optimizers = {
            parameter: make([parameter]) for parameter in parameters if parameter.requires_grad
        }
        for parameter in self._optimizers:
            parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: Tensor) -> None:
        self._optimizers[parameter].step()
        parameter.grad = None

    def step(self) -> None:
        """Do nothing: backward has done it."""

    def zero_grad(self) -> None:
        """Do nothing: no gradient is left."""

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of the optimizer's state."""
        return state_tensors(self._optimizers.values())
