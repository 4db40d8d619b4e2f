"""The optimizers, each as a function of parameters, and the wrapper that gives them the step's contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from autotune.candidate import Optimizer

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def optimizer_maker(name: Optimizer) -> MakeOptimizer:
    """Return what makes torch's optimizer for some parameters.

    All are fused: one kernel reads and writes parameter, gradient and state in place, with no temporaries.
    Learning rates are small enough for the default initialization of every preset, and constant: memory and
    speed do not depend on them.
    """
    match name:
        case "adamw":
            return lambda parameters: torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.01, fused=True)
        case "sgd":
            return lambda parameters: torch.optim.SGD(parameters, lr=1e-2, fused=True)


class PlainOptimizer:
    """One torch optimizer over all parameters, with state beside them."""

    def __init__(self, parameters: Iterable[nn.Parameter], make: MakeOptimizer) -> None:
        self._optimizer = make(parameters)

    def step(self) -> None:
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients, so that their memory is free until the next backward pass."""
        self._optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> Iterator[Tensor]:
        return state_tensors([self._optimizer])


def state_tensors(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Tensor]:
    """Return every tensor of the optimizers' state."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
