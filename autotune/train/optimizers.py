"""The optimizers, each as a function of parameters, and the wrapper that gives them the step's contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from autotune.candidate import Optimizer

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def optimizer_maker(name: Optimizer, parameters: int) -> MakeOptimizer:
    """Return what makes torch's optimizer for some of a model's `parameters` (their number).

    All are fused: one kernel reads and writes parameter, gradient and state in place, with no temporaries.
    Memory and speed do not depend on the learning rate. It is constant and falls with the root of the number
    of parameters: a rule found by trial, under which the loss falls on the stream from the first steps, with
    no warm-up, for models from 0.1M to 270M parameters.
    """
    root = math.sqrt(parameters)
    match name:
        case "adamw":
            rate = min(1e-3, 0.5 / root)
            return lambda group: torch.optim.AdamW(group, lr=rate, weight_decay=0.01, fused=True)
        case "sgd":
            rate = min(1e-2, 10 / root)
            return lambda group: torch.optim.SGD(group, lr=rate, fused=True)


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
