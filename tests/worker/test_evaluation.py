"""The micro-batch for evaluation, on a device that is arithmetic."""

from types import SimpleNamespace

import pytest
import torch

from autotune.outcome import PhaseReport
from autotune.worker.measuring.evaluation import largest_evaluation
from autotune.worker.measuring.memory_meter import Lap
from autotune.worker.training import Ranks

TAKEN, RESTING, EACH = 100, 200, 10


class Device:
    """Takes `each` bytes a sample for an evaluation, and refuses what goes beyond `limit`."""

    taken = TAKEN

    def __init__(self, each=EACH, limit=10**9, ranks=None):
        self.each, self.limit = each, limit
        self.tried = []
        self._model = torch.nn.Linear(1, 1)
        self.training = SimpleNamespace(
            model=self._model,
            device=torch.device("cpu"),
            ranks=ranks or Ranks(),
            batch=lambda index, size: size,
            place=lambda batch: batch,
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


class Tighter:
    """Two ranks, of which the other has room for `most` samples as it foretells, and for `fits` when it runs them."""

    size = 2

    def __init__(self, most, fits):
        self.most, self.fits = most, fits
        self.tried, self.asked = [], 0

    def largest(self, value):
        if value not in (0, -1):
            return max(value, -self.most)
        if len(self.tried) == self.asked:  # there is time left
            return value
        self.asked = len(self.tried)
        return max(value, -int(self.tried[-1] <= self.fits))


def found(device, micro_batch=2, budget=10**9, seconds=1e-3, headroom=0.0, predicted=None, sharding="ddp"):
    request = SimpleNamespace(
        candidate=SimpleNamespace(micro_batch=micro_batch, sharding=sharding, tensor_parallel=1),
        budget=budget,
        headroom=headroom,
        sample_seconds=10.0,
        evaluation_micro_batch=predicted,
    )
    if isinstance(device.training.ranks, Tighter):
        device.training.ranks.tried = device.tried
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
    assert found(Device(limit=0)) == 2


def test_what_is_predicted_is_run_first_and_halved_where_it_is_refused():
    device = Device()
    assert (found(device, predicted=23), device.tried) == (23, [23])
    assert found(Device(), predicted=1000) == 32, "16 times the training's at most"
    refusing = Device(limit=TAKEN + RESTING + 9 * EACH)
    assert (found(refusing, predicted=15), refusing.tried) == (7, [15, 7])
    assert found(Device(), predicted=1) == 32, "a prediction below the training's says nothing"


def test_all_ranks_take_what_the_fullest_can():
    device = Device(ranks=Tighter(most=10, fits=8))
    assert (found(device), device.tried) == (8, [8])
    device = Device(ranks=Tighter(most=100, fits=8))
    assert (found(device), device.tried) == (8, [32, 16, 8])


def test_ranks_that_wait_for_each_other_climb_as_far_as_is_foretold():
    device = Device(ranks=Tighter(most=10, fits=100))
    assert (found(device, sharding="fsdp2", predicted=30), device.tried) == (8, [4, 8])
    greedy = Device(each=2 * EACH, ranks=Ranks(0, 2))
    assert found(greedy, sharding="fsdp2", budget=TAKEN + RESTING + 40 * EACH) == 16
    assert greedy.tried == [4, 8, 16], "the second step foretells what the first could not"


def test_an_error_that_is_none_of_memory_is_raised():
    device = Device()
    device.training.loss = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        found(device)
