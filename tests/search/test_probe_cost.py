"""What a probe is expected to take: its steps, and what probes of its kind took beside them."""

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Oom
from autotune.search.probe_cost import COMPILATION, MICRO_STEPS, OPTIMIZER_STEPS, START, ProbeCost
from autotune.testing.arithmetic import ok
from autotune.trial import Trial

COMPILED = Candidate(compile="regional")


def trial(candidate, outcome, seconds):
    return Trial(number=1, candidate=candidate, node="", why="", outcome=outcome, seconds=seconds)


def test_before_any_probe_the_start_is_assumed():
    cost = ProbeCost(())
    assert cost.seconds(Candidate(), 8.0, 4) == START + MICRO_STEPS * 2.0
    assert cost.seconds(Candidate(), 8.0, 1) == START + OPTIMIZER_STEPS * 8.0  # steps of one micro-step each
    assert cost.start("regional") == START + COMPILATION


def test_what_a_probe_took_beside_its_steps_is_expected_of_the_next_of_its_kind():
    seen = ok(100, micro=1.0, step=0.5)  # two micro-steps a step
    steps = MICRO_STEPS * 2.5 / 2
    cost = ProbeCost((trial(Candidate(), seen, steps + 3.0), trial(COMPILED, seen, steps + 30.0)))
    assert cost.start("none") == pytest.approx(3.0)
    assert cost.start("regional") == pytest.approx(30.0)


def test_a_probe_that_did_not_come_to_its_end_teaches_nothing():
    failed = trial(Candidate(), Oom(phase="forward", requested=1, free=0), 100.0)
    assert ProbeCost((failed,)).start("none") == START


def test_a_trial_of_an_earlier_run_teaches_nothing_for_it_took_no_time_here():
    seen = ok(100, micro=1.0, step=0.5)
    taken_over = trial(COMPILED, seen, 0.0), trial(Candidate(), seen, 0.0)
    assert ProbeCost(taken_over).start("regional") == START + COMPILATION
    assert ProbeCost(taken_over).start("none") == START
