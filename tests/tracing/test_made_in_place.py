"""Backward passes that write into what they hold: as many bytes on fake tensors as torch's profiler counts of real."""

from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from autotune.worker.tracing.kernel_workspace import ON_CPU
from autotune.worker.tracing.storage_recorder import StorageRecorder
from tests.memory.counted import peak

ROWS, COLUMNS = 60, 50
ELEMENT = 4
"""Bytes."""
WEIGHTS = torch.ones(ROWS, COLUMNS)


def rows():
    return torch.arange(0, ROWS, 2)


def columns():
    return torch.arange(COLUMNS).expand(ROWS, COLUMNS).contiguous()


class Spread(torch.autograd.Function):
    """A user's own derivative, which asks for another tensor, and gets it."""

    @staticmethod
    def forward(_, numbers):
        return numbers[:1].clone()

    @staticmethod
    def backward(_, gradient):
        first = torch.arange(1)
        return gradient.new_zeros(ROWS, COLUMNS).index_add(0, first, gradient)


CHOSEN = {
    "gather": lambda numbers: numbers.gather(1, columns()),
    "take_along_dim": lambda numbers: numbers.take_along_dim(columns(), 1),
    "rows by numbers": lambda numbers: numbers[rows()],
    "index_select": lambda numbers: numbers.index_select(0, rows()),
    "max": lambda numbers: numbers.max(1).values,
    "topk": lambda numbers: numbers.topk(5, 1).values,
    "sort": lambda numbers: numbers.sort(1).values,
    "cummax": lambda numbers: numbers.cummax(1).values,
}
OTHERS = {
    "summed where it is used twice": lambda numbers: (numbers * 2) + numbers.sin(),
    "a derivative of one's own": Spread.apply,
    "index_put of the model": lambda numbers: numbers.index_put((rows(),), torch.ones(COLUMNS)).mul_(WEIGHTS),
    "scatter of the model": lambda numbers: numbers.scatter(1, columns(), 1.0).mul_(WEIGHTS),
    "scatter_add of the model": lambda numbers: torch.zeros(ROWS, COLUMNS).scatter_add(1, columns(), numbers),
}


def step(function, numbers):
    function(numbers).sum().backward()


def real(function):
    numbers = torch.randn(ROWS, COLUMNS, requires_grad=True)
    step(function, torch.randn(ROWS, COLUMNS, requires_grad=True))  # what first calls take
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(function, numbers)
    return peak(profiled)


def traced(function):
    with StorageRecorder("cpu", ON_CPU) as recorder:
        numbers = torch.empty(ROWS, COLUMNS, requires_grad=True)
        found = recorder.allocations
        with recorder.segment() as segment:
            loss = function(numbers).sum()
            found.mark("backward")
            loss.backward()
            del loss
        moves = [found.sizes[event] if event >= 0 else -found.sizes[~event] for event in segment.events]
    return max(accumulate(moves))


@pytest.mark.parametrize("function", [*CHOSEN.values(), *OTHERS.values()], ids=[*CHOSEN, *OTHERS])
def test_a_backward_pass_takes_as_many_bytes_as_a_real_one(function):
    a_row = COLUMNS * (ELEMENT + 8)  # which `sort` copies with its places, one after the other
    assert traced(function) == pytest.approx(real(function), abs=a_row)


def test_a_derivative_of_ones_own_makes_what_it_asks_for():
    assert traced(Spread.apply) >= 2 * ROWS * COLUMNS * ELEMENT
