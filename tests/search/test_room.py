"""What a search knows of the memory of a device."""

import pytest

from autotune.candidate import Candidate
from autotune.memory.calibration import Corrected
from autotune.search.room import Room
from autotune.units import GIB
from tests.search.test_partial_checkpointing import UNIT, deep, make_context

FIXED, PER_SAMPLE = 20 * GIB, 16 * GIB
FRAGMENTED = 1.1
"""What is reserved of what is allocated."""


class UpToATerabyte:
    """A memory model that simulates what is reserved up to a terabyte, as `memory.unlimited` does."""

    def covers(self, candidate):
        return True

    def least(self, candidate):
        return float(FIXED + candidate.micro_batch * PER_SAMPLE)

    def bounds(self, candidate):
        allocated = self.least(candidate)
        mean = allocated * (FRAGMENTED if allocated < 1024 * GIB else 1.0)
        return Corrected(mean, mean, mean)


def test_what_a_rung_takes_is_told_near_the_device_and_not_where_nothing_is_simulated_any_more():
    context = make_context(deep(80 * GIB // UNIT))
    room = Room((), context, UpToATerabyte(), simulated=True)
    assert room.largest(Candidate()) * PER_SAMPLE > 1024 * GIB > room.largest(Candidate()) // 2 * PER_SAMPLE
    taken = room.guess_taken(Candidate())
    assert taken.fixed == pytest.approx(FRAGMENTED * FIXED)
    assert taken.per_sample == pytest.approx(FRAGMENTED * PER_SAMPLE)
