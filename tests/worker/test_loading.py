"""Batches of a user's dataset: the same whatever makes them, the largest for memory, and no worker is left."""

import os
import random
import shutil
import signal
from collections import namedtuple

import psutil
import pytest
import torch

from autotune.candidate import Candidate
from autotune.memory.host_footprint import batches_ahead, loader_bytes
from autotune.specs import ModelSpec
from autotune.worker.build.assembly import assemble
from autotune.worker.data.loading import Loader
from autotune.worker.errors import OutOfSpace
from autotune.worker.measuring.measure import measure
from autotune.worker.measuring.memory_meter import meter_for
from autotune.worker.measuring.phases import Phases
from autotune.worker.tracing.trace import trace
from tests.data.own_model import Texts, pad
from tests.data.requests import OWN, request
from tests.reasons import reasons, refused

CPU = torch.device("cpu")
DATA = ModelSpec(name="own_model:build_with_dataset", source="function", path=OWN.path)


@pytest.fixture
def open_loader():
    opened, before = [], set(psutil.Process().children())

    def make(dataset=None, stride=1, **fields):
        opened.append(Loader(dataset or Texts(), pad, Candidate(**fields), CPU, seed=0, stride=stride))
        return opened[-1]

    yield make
    for loader in opened:
        loader.close()
    assert set(psutil.Process().children()) <= before, "workers are left"


def equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_batches_are_the_same_whatever_the_number_of_workers(open_loader):
    """Though samples draw random numbers, and whatever was drawn or taken before."""
    alone, several = open_loader(), open_loader(num_workers=2, prefetch_factor=4)
    expected = [alone.batch(index, 3) for index in range(6)]
    torch.rand(3)
    assert all(equal(several.batch(index, 3), batch) for index, batch in enumerate(expected))
    assert equal(several.batch(2, 3), expected[2]), "one that does not follow the last"
    second = open_loader(num_workers=1, stride=2)
    assert all(equal(second.batch(index, 3), expected[index]) for index in (1, 3, 5)), (
        "every second one, of a rank"
    )


def test_every_sample_comes_once_before_one_comes_again(open_loader):
    class Numbers:
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return {"tokens": torch.tensor([index])}

    loader = open_loader(Numbers())
    seen = [int(number) for index in range(10) for number in loader.batch(index, 4)["tokens"]]
    assert sorted(seen) == list(range(40))
    assert seen != sorted(seen)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_draws_nothing_of_the_trainings_numbers(open_loader, workers):
    loader = open_loader(num_workers=workers)
    torch.manual_seed(3)
    random.seed(3)
    expected = (torch.rand(1), random.random())
    torch.manual_seed(3)
    random.seed(3)
    loader.batch(0, 2)
    assert (torch.rand(1), random.random()) == expected


def test_the_heaviest_batch_is_of_the_largest_sample(open_loader):
    assert open_loader().heaviest(3)["tokens"].shape == (3, 40)


class Sometimes(Texts):
    """Fails in worker processes alone."""

    def __init__(self, act=None):
        self.act, self.parent = act, os.getpid()

    def __getitem__(self, index):
        if os.getpid() != self.parent:
            if self.act is None:
                raise ZeroDivisionError("a bug of the user's own")
            os.kill(os.getpid(), self.act)
        return super().__getitem__(index)


def test_an_error_of_the_dataset_s_own_comes_through(open_loader):
    with pytest.raises(ZeroDivisionError):
        open_loader(Sometimes(), num_workers=1).batch(0, 2)


def test_shared_memory_that_is_too_small_is_refused_before_the_workers_start(open_loader, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1000))
    said = r"4 loader workers with 2 batches each in advance take up to .* 1000 B are free"
    with refused("num_workers", "room", match=said):
        open_loader(num_workers=4).batch(0, 2)


def test_a_worker_that_dies_is_explained(open_loader):
    with refused("num_workers", "room"):
        open_loader(Sometimes(signal.SIGBUS), num_workers=1).batch(0, 2)
    with pytest.raises(OutOfSpace) as killed:
        open_loader(Sometimes(signal.SIGKILL), num_workers=1).batch(0, 2)
    assert killed.value.where == "host"


def test_waiting_for_data_is_measured_apart(tmp_path):
    """Through a whole measurement, whose memory is of the largest sample."""
    before = set(psutil.Process().children())
    probe = request(DATA, tmp_path, seq_len=8, precision="fp32", num_workers=1, micro_batch=2)
    training = assemble(probe)
    phases = Phases(lambda *_: None)
    phases.measure_with(meter_for(CPU))
    outcome = measure(probe, training, phases, lambda: None)
    phases.meter.close()
    training.close()
    timing = outcome.timing
    assert 0 < timing.data_wait.mean < timing.last_micro_step.mean
    assert timing.data_wait.count == timing.last_micro_step.count
    assert outcome.loader_bytes > 2 * 2 * 2 * 40 * 8, "two batches ahead, and the process"
    assert set(psutil.Process().children()) <= before


def test_a_dataset_is_traced_at_its_largest_sample(tmp_path):
    with_workers, alone = (
        trace(request(DATA, tmp_path, seq_len=8, num_workers=workers)) for workers in (2, 0)
    )
    assert with_workers.allocated(5) == alone.allocated(5)
    assert alone.facts["sample_bytes"] == 2 * 40 * 8


def test_batches_in_advance_are_host_memory():
    assert [batches_ahead(Candidate(num_workers=workers, prefetch_factor=4)) for workers in (1, 8)] == [4, 32]
    assert loader_bytes(Candidate(), 100) == 0
    assert loader_bytes(Candidate(pin_memory=True, micro_batch=3), 100) == 300
    assert loader_bytes(Candidate(num_workers=2, micro_batch=3), 100) == 1200
    assert loader_bytes(Candidate(num_workers=2, pin_memory=True, micro_batch=3), 100) == 2400
    assert reasons(Candidate(prefetch_factor=4)) == [("prefetch_factor", "axes", "num_workers")]
    assert Candidate(num_workers="4").num_workers == 4
