"""Waiting for data apart from computing, on a device that runs behind the host: its clock is scripted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.worker.data.placing import placing_on
from autotune.worker.measuring import steps
from autotune.worker.measuring.data_wait import data_wait_on
from autotune.worker.measuring.memory_meter import Lap
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.steps import Stepper
from autotune.worker.training import Training

CUDA = torch.device("cuda:0")
COMPUTE = 5.0
"""Seconds that the device takes for a micro-step; the host takes none to queue it."""


class Queue:
    """A host's clock, and when the device will have done what is in its queue."""

    baseline = 0
    asynchronous = True

    def __init__(self) -> None:
        self.now = self.done = 0.0

    def compute(self, seconds: float) -> None:
        self.done = max(self.now, self.done) + seconds

    def synchronize(self) -> None:
        self.now = max(self.now, self.done)

    def lap(self, detailed: bool = True) -> Lap:
        return Lap(0, 0)


class Event:
    """A moment of the queue: when the device comes to it."""

    queue: Queue

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = max(self.queue.now, self.queue.done)

    def elapsed_time(self, later: Event) -> float:
        assert self.queue.now >= later.at, "the device has not come to it yet"
        return (later.at - self.at) * 1000


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Event.queue = Queue()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(steps.time, "perf_counter", lambda: queue.now)
    return queue


def stepper(queue: Queue, making: float, copied: list[float] | None = None) -> Stepper:
    """Return steps of a training whose batches take `making` seconds of the host."""

    class Loss(SimpleNamespace):
        def __truediv__(self, by: int) -> Loss:
            return self

        def backward(self) -> None:
            queue.compute(COMPUTE)

        def detach(self) -> float:
            return 1.0

    def batch(index: int, micro_batch: int) -> Any:
        queue.now += making
        return index

    def place(index: Any) -> Any:
        queue.compute(0.5)  # the copy is the device's, behind what it computes
        if copied is not None:
            copied.append(index)
        return index

    optimizer: Any = SimpleNamespace(step=lambda: queue.compute(1.0), zero_grad=lambda: None)
    training = Training(
        model=torch.nn.Linear(1, 1), optimizer=optimizer, device=CUDA, loss=lambda batch: Loss(),  # type: ignore[arg-type,return-value]
        batch=batch, place=place, tokens_per_sample=1, attention=None, close=lambda: None,
        gradients=lambda: [torch.ones(1)],
    )  # fmt: skip
    phases = Phases(lambda phase, step: None)
    phases.measure_with(queue)  # type: ignore[arg-type]
    phases.detailed = False
    return Stepper(training, 4, phases)


def test_batches_that_are_made_while_the_device_computes_cost_nothing(queue: Queue) -> None:
    driven = stepper(queue, making=1.0)
    driven.step(2)
    parts = driven.step(2)
    assert (parts.data_wait, parts.micro_step, parts.last_micro_step) == (0.0, 5.5, 5.5)


def test_only_what_the_device_waits_for_is_waiting_for_data(queue: Queue) -> None:
    driven = stepper(queue, making=8.0)
    driven.step(2)
    parts = driven.step(2)
    assert parts.data_wait == 8.0 - 5.5
    assert (parts.micro_step, parts.last_micro_step) == (8.0, 8.0)


def test_the_copy_is_no_waiting_for_data_and_waits_for_nothing(queue: Queue) -> None:
    driven = stepper(queue, making=0.0)
    parts = driven.step(1)
    assert (parts.data_wait, parts.last_micro_step, parts.optimizer_step) == (0.0, 5.5, 1.0)


def test_the_stream_is_taken_in_its_order_whatever_comes_between(queue: Queue) -> None:
    copied: list[Any] = []
    driven = stepper(queue, 0.0, copied)
    driven.step(2)
    driven.draw = lambda: "drawn"  # type: ignore[assignment,return-value]
    driven.step(1)
    driven.draw = None
    driven.step(2)
    assert copied == [0, 1, "drawn", 2, 3]


def test_the_cpu_waits_while_its_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1.0, 3.0, 4.0, 4.5])
    monkeypatch.setattr("autotune.worker.measuring.data_wait.time.perf_counter", lambda: next(now))
    wait = data_wait_on(torch.device("cpu"))
    for _ in range(2):
        with wait:
            pass
    assert (wait.seconds(), wait.seconds()) == (2.5, 0.0)


class HostTensor:
    """A tensor on the host, as far as it is brought to a GPU."""

    device = torch.device("cpu")

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned

    def is_pinned(self) -> bool:
        return self._pinned

    def pin_memory(self) -> HostTensor:
        return HostTensor(True)

    def to(self, device: torch.device, non_blocking: bool = False) -> Any:
        return device, self._pinned, non_blocking


@pytest.mark.parametrize(
    ("own_pinned", "pinned", "expected"),
    [
        (False, True, (CUDA, True, True)),
        (True, False, (CUDA, True, True)),
        (False, False, (CUDA, False, False)),  # a loader that was asked not to pin
    ],
)
def test_batches_are_pinned_and_copied_without_waiting(
    own_pinned: bool, pinned: bool, expected: object
) -> None:
    batch: Any = {"x": HostTensor(own_pinned)}
    assert placing_on(CUDA, pinned)(batch) == {"x": expected}


def test_a_trace_pins_nothing() -> None:
    """Whatever holds the model's parameters: shards are no fake tensors, they hold some."""
    with FakeTensorMode():
        batch: Any = {"x": torch.ones(3)}
        assert placing_on(torch.device("meta"))(batch)["x"].device.type == "meta"
    assert placing_on(torch.device("cpu"))(batch) is batch
