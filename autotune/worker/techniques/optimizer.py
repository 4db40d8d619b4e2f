"""The optimizers, each as a function of parameters, and the wrapper that gives them the step's contract."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from autotune.candidate import Optimizer, OptimizerKernel
from autotune.worker.errors import lacking

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

MOMENTUM = 0.9
"""Share of the moment that each step keeps: the usual one."""


def optimizer_maker(name: Optimizer, parameters: int, kernel: OptimizerKernel = "fused") -> MakeOptimizer:
    """Return what makes the optimizer for some of a model's `parameters` (their number).

    torch's are fused (one kernel reads and writes parameter, gradient and state in place, with no temporaries), or
    `foreach`, whose AdamW takes the roots of all second moments at once. Adafactor is transformers', as its Trainer
    sets it up; 8-bit AdamW is bitsandbytes'. Memory and speed do not depend on the learning rate. It is constant and
    falls with the root of the number of parameters: a rule found by trial, under which the loss falls on the stream
    from the first steps, with no warm-up, for models from 0.1M to 270M parameters. Raises CannotRun where a library
    is not installed.
    """
    root = math.sqrt(parameters)
    how: dict[str, Any] = {kernel: True}
    rate = min(1e-3, 0.5 / root)
    match name:
        case "adamw":
            return lambda group: torch.optim.AdamW(group, lr=rate, weight_decay=0.01, **how)
        case "adamw-8bit":
            bitsandbytes = _bitsandbytes()
            return lambda group: bitsandbytes.optim.AdamW(group, lr=rate, weight_decay=0.01, optim_bits=8)
        case "adafactor":
            from transformers import Adafactor  # here: its module imports peft, which makes tensors

            return lambda group: _adafactor(
                Adafactor(group, lr=rate, scale_parameter=False, relative_step=False)
            )
        case "momentum":
            slower = min(1e-3, 1 / root)  # a moment of 0.9 sums ten steps
            return lambda group: torch.optim.SGD(group, lr=slower, momentum=MOMENTUM, **how)
        case "sgd":
            faster = min(1e-2, 10 / root)
            return lambda group: torch.optim.SGD(group, lr=faster, **how)


def _adafactor(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return transformers' Adafactor without what it keeps and does not read."""

    def forget(*_: object) -> None:
        # The size of each parameter, which is read only where it scales the rate: no state worth keeping.
        for state in optimizer.state.values():
            state["RMS"] = 0

    optimizer.register_step_post_hook(forget)
    return optimizer


def _bitsandbytes() -> Any:
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise lacking("optimizer", "8-bit AdamW", "bitsandbytes", error) from error


class PlainOptimizer:
    """One torch optimizer over all parameters, with state beside them."""

    def __init__(self, parameters: Iterable[nn.Parameter], make: MakeOptimizer) -> None:
        self._optimizer = make(parameters)

    def step(self) -> None:
        """Update every parameter from its gradient."""
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients, so that their memory is free until the next backward pass."""
        self._optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of the optimizer's state."""
        return state_tensors([self._optimizer])


def state_tensors(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Tensor]:
    """Return every tensor of the optimizers' state."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
