"""One global step on a training made by hand: what accumulates, what is timed, what is refused."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from autotune.worker.measuring.measure import warm_up
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.steps import NotFinite, Stepper
from autotune.worker.techniques.loss_scaling import ScaledOptimizer
from autotune.worker.training import Training


class Sgd:
    def __init__(self, parameters):
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)
        self.seen = []

    def step(self):
        (parameters,) = (group["params"] for group in self.optimizer.param_groups)
        self.seen.append([parameter.grad.clone() for parameter in parameters])
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()

    def state_tensors(self):
        return iter(())


class StillMeter:
    """Counts no memory; these tests are not about it."""

    baseline = 0
    asynchronous = False

    def synchronize(self):
        pass

    def lap(self, detailed=True):
        from autotune.worker.measuring.memory_meter import Lap

        return Lap(0, 0)


def make(loss_of=lambda loss: loss):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).double()
    data = torch.randn(64, 4, dtype=torch.float64)
    training = Training(
        model=model,
        optimizer=Sgd(model.parameters()),
        device=torch.device("cpu"),
        loss=lambda batch: loss_of(model(batch["x"]).square().mean()),
        batch=lambda index, size: {"x": data[index * size : (index + 1) * size]},
        tokens_per_sample=1,
        attention=None,
        close=lambda: None,
    )
    told = []
    phases = Phases(lambda phase, step: told.append((phase, step)))
    phases.measure_with(StillMeter())
    return training, phases, told


def test_accumulated_gradients_are_those_of_the_big_batch():
    small, phases, _ = make()
    Stepper(small, 4, phases).step(4)
    big, phases, _ = make()
    Stepper(big, 16, phases).step(1)
    for ours, theirs in zip(small.optimizer.seen[0], big.optimizer.seen[0], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_steps_go_on_through_the_stream_and_clear_the_gradients():
    training, phases, told = make()
    stepper = Stepper(training, 4, phases)
    stepper.step(2)
    stepper.step(1)
    assert stepper.batches_taken == 3
    assert all(parameter.grad is None for parameter in training.model.parameters())
    assert told == [
        ("forward", 1), ("backward", 1), ("forward", 1), ("backward", 1), ("optimizer", 1),
        ("forward", 2), ("backward", 2), ("optimizer", 2),
    ]  # fmt: skip
    assert [report.phase for report in phases.reports()] == ["forward", "backward", "optimizer"]


def test_the_loss_of_a_step_is_the_mean_over_its_micro_steps():
    training, phases, _ = make()
    batches = [training.batch(index, 4) for index in range(2)]
    expected = math.fsum(training.loss(batch).item() for batch in batches) / 2
    stepper = Stepper(training, 4, phases)
    stepper.step(2)
    assert list(stepper.losses) == [pytest.approx(expected)]


def test_a_lone_micro_step_is_the_last_one():
    training, phases, _ = make()
    parts = Stepper(training, 4, phases).step(1)
    assert parts.micro_step is None
    assert parts.last_micro_step > 0


@pytest.mark.parametrize(
    ("fault", "what", "phase"),
    [
        (lambda loss: loss * float("inf"), "loss", "forward"),
        (lambda loss: (loss * 0).sqrt(), "gradient", "backward"),
    ],
)
def test_what_is_not_finite_is_refused_after_the_step(fault, what, phase):
    training, phases, _ = make(fault)
    with pytest.raises(NotFinite) as caught:
        Stepper(training, 4, phases).step(1)
    assert (caught.value.what, phases.phase) == (what, phase)


def scaled(loss_of=lambda loss: loss):
    training, phases, _ = make(loss_of)
    scaling = ScaledOptimizer(training.optimizer, training.model.parameters(), torch.device("cpu"))
    plain = training.loss
    return replace(
        training, optimizer=scaling, scaling=scaling, loss=lambda b: scaling.scale(plain(b))
    ), phases


def test_warming_up_goes_on_until_a_scaled_step_was_taken():
    overflows = iter([True, True, False, False])
    training, phases = scaled(lambda loss: loss * (math.inf if next(overflows) else 1.0))
    training = replace(training, loss=lambda batch, inner=training.loss: inner(batch).nan_to_num())
    stepper = Stepper(training, 4, phases)
    warm_up(stepper, 1, first=1, observer=SimpleNamespace(look=lambda _: None))
    assert (training.scaling.skipped, len(training.optimizer._optimizer.seen)) == (2, 2)


def test_a_scale_that_no_gradient_survives_is_not_finite():
    training, phases = scaled(lambda loss: (loss * 0).sqrt())  # 0, with a gradient that is NaN
    stepper = Stepper(training, 1, phases)
    for _ in range(16):  # 2^16 down to 1
        stepper.step(1)
    with pytest.raises(NotFinite) as caught:
        stepper.step(1)
    assert caught.value.what == "scale"
    assert phases.phase == "backward"
