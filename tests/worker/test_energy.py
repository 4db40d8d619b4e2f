"""The energy of a step's parts, from a counter that a test turns."""

from __future__ import annotations

import pytest

from autotune.worker.measuring.energy_meter import GpuEnergy
from autotune.worker.measuring.statistics import energy, narrow
from autotune.worker.measuring.steps import StepJoules, Stepper, StepTimes
from tests.fakes.nvml import H100, FakeNvml
from tests.worker.test_steps import make


def test_the_counter_of_the_gpu_is_read_at_the_boundaries_of_the_parts():
    """1,000 J before, 6 for two micro-steps, 4 for the last one, 0.5 for the optimizer."""
    training, phases, _ = make()
    stepper = Stepper(training, 4, phases)
    assert stepper.step(3).energy is None
    nvml = FakeNvml(counted=[900.0, 1000.0, 1006.0, 1010.0, 1010.5])
    stepper.energy = GpuEnergy(nvml, H100.uuid)
    assert stepper.step(3).energy == StepJoules(3.0, 4.0, 0.5)
    assert (stepper.energy.counter, nvml.counted) == ("nvml", [1010.5])
    nvml.counted = [1010.5, 1014.5, 1015.0]
    assert stepper.step(1).energy == StepJoules(None, 4.0, 0.5)


def test_reading_the_counter_is_in_no_parts_time(monkeypatch):
    """A clock that each look at it turns by a second, and a counter that takes a hundred to answer."""
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    class Slow:
        counter = "nvml"

        def joules(self):
            now[0] += 100.0
            return now[0]

    monkeypatch.setattr("autotune.worker.measuring.steps.time.perf_counter", clock)
    training, phases, _ = make()
    stepper = Stepper(training, 4, phases)
    stepper.energy = Slow()
    parts = stepper.step(2)
    assert max(parts.micro_step, parts.last_micro_step, parts.optimizer_step) < 20


def sampled(*joules):
    return [StepTimes(1.0, 1.0, 0.0, energy=StepJoules(each, each, 1.0)) for each in joules]


def test_energy_is_composed_as_time_is_and_a_counter_that_lags_is_averaged():
    steady = energy(sampled(10.0, 10.0, 10.0), "nvml")
    assert steady.global_step(5) == 5 * 10.0 + 1.0
    assert steady.interval(5) == 0.0
    lagging = energy(sampled(0.0, 0.0, 0.0, 0.0, 50.0), "nvml")
    assert lagging.micro_step.mean == 10.0
    assert lagging.interval(5) > lagging.global_step(5)
    alone = energy([StepTimes(None, 1.0, 0.0, energy=StepJoules(None, 7.0, 1.0))], "rapl")
    assert (alone.micro_step, alone.counter) == (alone.last_micro_step, "rapl")


def test_steps_go_on_until_the_energy_is_known_too():
    assert narrow(sampled(10.0, 10.0, 10.0), accumulation_steps=2)
    assert not narrow(sampled(0.0, 20.0, 10.0), accumulation_steps=2)
    assert narrow([StepTimes(1.0, 1.0, 0.0)] * 3, accumulation_steps=2)


def test_a_gpu_that_cannot_be_asked_is_told_at_once():
    from autotune.devices.monitor.monitor import NoEnergyCounter

    with pytest.raises(NoEnergyCounter):
        GpuEnergy(FakeNvml(counted=None), H100.uuid)
