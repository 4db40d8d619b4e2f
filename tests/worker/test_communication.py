"""Sharing what a profiler saw of collectives out to the parts of a step."""

import pytest

from autotune.worker.measuring.communication import covered, in_parts
from autotune.worker.measuring.steps import StepTimes

SECOND = 10**9
BEGAN = 1_795_284_890 * SECOND


def spans(*pairs):
    return [(BEGAN + int(start * SECOND), BEGAN + int(end * SECOND)) for start, end in pairs]


def test_what_overlaps_counts_once():
    assert covered(spans((0, 2), (1, 3), (1.5, 1.7), (5, 6), (8, 12))) == pytest.approx(3 + 1 + 4)
    assert covered([]) == 0


def test_each_part_of_a_step_has_its_own():
    # Two micro-steps of 2 s, the last of 3 s, the optimizer's of 1 s.
    parts = StepTimes(micro_step=2.0, last_micro_step=3.0, optimizer_step=1.0)
    heard = in_parts(spans((7.5, 8), (1, 1.5), (3, 3.5), (5, 6.5)), BEGAN, parts, 3)
    assert (heard.micro_step, heard.last_micro_step, heard.optimizer_step) == pytest.approx((0.5, 1.5, 0.5))
    assert heard.global_step(11) == pytest.approx(10 * 0.5 + 1.5 + 0.5)
    only = in_parts(spans((1, 2)), BEGAN, StepTimes(None, 3.0, 1.0), 1)
    assert only.micro_step == only.last_micro_step == pytest.approx(1.0)
    assert in_parts([], BEGAN, parts, 3) is None


def test_what_is_told_late_or_after_the_step_is_no_other_parts():
    parts = StepTimes(micro_step=2.0, last_micro_step=3.0, optimizer_step=1.0)
    heard = in_parts(spans((6, 7.2), (8.5, 9)), BEGAN, parts, 3)
    assert (heard.micro_step, heard.last_micro_step, heard.optimizer_step) == pytest.approx((0.0, 1.2, 0.0))
