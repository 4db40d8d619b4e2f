"""What measurements of one run differ by, beyond the spread of their own steps."""

import math
import random

import pytest

from autotune.candidate import Candidate
from autotune.confidence import t_quantile
from autotune.search.drift import FLOOR, PRIOR_WEIGHT, drift_of
from autotune.testing.arithmetic import ok
from autotune.trial import ProofFinished, Trial
from autotune.worker.measuring.statistics import timing
from autotune.worker.measuring.steps import StepTimes


def trial(number, outcome):
    return Trial(
        number=number, candidate=Candidate(micro_batch=4), node="grow", why="", outcome=outcome, seconds=1.0
    )


def proof(number, outcome):
    return ProofFinished(number=number, outcome=outcome, passed=True, why="", seconds=1.0)


def stepping(*seconds):
    return ok(500).model_copy(update={"step_seconds": seconds})


def test_a_quiet_run_has_the_floor(context):
    history = tuple(trial(number, stepping(1.0, 1.001, 0.999, 1.0)) for number in range(1, 9))
    drift = drift_of(history, (), context())
    assert (drift.share, drift.floor, drift.halves, drift.repeats) == (FLOOR, FLOOR, 8, 0)


def test_halves_that_differ_widen_it_and_a_noisy_step_beside_steady_ones_less_so(context):
    drifting = drift_of((trial(1, stepping(1.0, 1.0, 1.0, 1.3, 1.3, 1.3)),), (), context())
    noisy = drift_of((trial(1, stepping(1.0, 1.3, 1.0, 1.3, 1.0, 1.3)),), (), context())
    assert drifting.share > 2 * noisy.share >= 2 * FLOOR


def two_steps(micro_steps):
    """Return what is recorded of two steps of two micro-steps each, without an optimizer's part."""
    known = timing([StepTimes(*micro_steps[:2], 0.0), StepTimes(*micro_steps[2:], 0.0)], alike=2)
    seconds = (sum(micro_steps[:2]), sum(micro_steps[2:]))
    return ok(500).model_copy(update={"timing": known, "step_seconds": seconds})


def test_of_two_steps_their_micro_steps_tell_what_is_noise(context):
    noise, drift = random.Random(0), random.Random(1)

    def history(drifting):
        steps = []
        for _ in range(400):
            second = math.exp(drift.gauss(0, drifting))
            micro = [noise.gauss(1, 0.05) * scale for scale in (1, 1, second, second)]
            steps.append(two_steps(micro))
        return tuple(trial(number, outcome) for number, outcome in enumerate(steps, 1))

    steady, drifting = drift_of(history(0), (), context()), drift_of(history(0.2), (), context())
    assert steady.halves == drifting.halves == 400
    assert steady.share < 0.04
    # Half of the variance of the second step against the first, of which two thirds are not taken for noise.
    assert drifting.share == pytest.approx(t_quantile(400) * math.sqrt(0.2**2 / 2 * 2 / 3), rel=0.15)


def test_two_steps_whose_micro_steps_differ_say_nothing(context):
    apart = timing([StepTimes(1.0, 1.2, 0.0), StepTimes(1.5, 1.7, 0.0)])
    outcome = ok(500).model_copy(update={"timing": apart, "step_seconds": (2.2, 3.2)})
    assert drift_of((trial(1, outcome),), (), context()).halves == 0


def test_a_proof_that_differs_from_its_probe_widens_it(context):
    history = (trial(1, ok(500, micro=0.1, step=0.0)),)
    drift = drift_of(history, (proof(1, ok(500, micro=0.2, step=0.0)),), context())
    variance = (PRIOR_WEIGHT * (FLOOR / t_quantile(PRIOR_WEIGHT)) ** 2 + math.log(2) ** 2 / 2) / (
        PRIOR_WEIGHT + 1
    )
    assert drift.share == pytest.approx(t_quantile(PRIOR_WEIGHT + 1) * math.sqrt(variance))
    assert drift.repeats == 1
    same = drift_of(history, (proof(1, ok(500, micro=0.1, step=0.0)),), context())
    assert same.share == FLOOR


def test_what_was_not_measured_says_nothing(context):
    assert drift_of((trial(1, ok(500)),), (), context()).halves == 0
