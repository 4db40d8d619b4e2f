"""The micro-batch for evaluation, on a device that is arithmetic."""

from types import SimpleNamespace

import pytest
import torch

from autotune.outcome import PhaseReport
from autotune.train.evaluation import largest_evaluation
from autotune.train.meter import Lap
from autotune.train.training import Ranks

TAKEN, RESTING, EACH = 100, 200, 10


class Device:
    """Takes `each` bytes a sample for an evaluation, and refuses what goes beyond `limit`."""

    taken = TAKEN

    def __init__(self, each=EACH, limit=10**9, ranks=1):
        self.each, self.limit = each, limit
        self.tried = []
        self._model = torch.nn.Linear(1, 1)
        self.training = SimpleNamespace(
            model=self._model,
            device=torch.device("cpu"),
            ranks=Ranks(0, ranks),
            batch=lambda index, size: size,
            loss=self._loss,
            loader=None,
        )
        self.phases = SimpleNamespace(meter=self, step=1)

    def _loss(self, size):
        assert not self._model.training
        assert not torch.is_grad_enabled()
        self.tried.append(size)
        if TAKEN + RESTING + size * self.each > self.limit:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return 1.0

    def next_batch(self):
        return 0

    def synchronize(self):
        pass

    def lap(self):
        return Lap(RESTING, RESTING + self.each * (self.tried[-1] if self.tried else 0))


def found(device, micro_batch=2, budget=10**9, seconds=1e-3, headroom=0.0):
    request = SimpleNamespace(
        candidate=SimpleNamespace(micro_batch=micro_batch),
        budget=budget,
        headroom=headroom,
        sample_seconds=10.0,
    )
    report = PhaseReport(phase="evaluation", seconds=seconds, peak=RESTING + EACH * micro_batch, end=RESTING)
    return largest_evaluation(request, device, report)


def test_it_is_doubled_as_often_as_there_is_room_and_run_at_that():
    device = Device()
    assert found(device, budget=TAKEN + RESTING + 19 * EACH) == 16
    assert device.tried == [16]
    assert device._model.training
    assert found(Device(), budget=TAKEN + RESTING + 19 * EACH, headroom=0.25) == 4


def test_what_is_refused_or_takes_more_than_may_be_is_halved():
    refusing = Device(limit=TAKEN + RESTING + 9 * EACH)
    assert (found(refusing), refusing.tried) == (8, [32, 16, 8])
    greedy = Device(each=2 * EACH)  # twice what the smaller one foretold
    assert (found(greedy, budget=TAKEN + RESTING + 40 * EACH), greedy.tried) == (16, [32, 16])


def test_it_stays_the_trainings_where_nothing_larger_can_be_tried():
    assert found(Device(), budget=TAKEN + RESTING + 3 * EACH) == 2
    assert found(Device(), seconds=1.0) == 2, "no time for twice as much"
    assert found(Device(ranks=2)) == 2
    assert found(Device(limit=0)) == 2


def test_an_error_that_is_none_of_memory_is_raised():
    device = Device()
    device.training.loss = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        found(device)
