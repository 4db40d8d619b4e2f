"""Which micro-batch of a rung is probed next."""

import pytest

from autotune.candidate import Candidate
from autotune.memory.calibration import Corrected, Z
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.search.graph import Growth
from autotune.search.growth import LIKELY, Grower, Next


class Told(Predictor):
    """A memory model that is told its peaks, with the standard deviation of all of them."""

    def __init__(self, peaks, deviation):
        super().__init__({}, DeviceOverhead("cpu", 0, 0))
        self.peaks, self.deviation = peaks, deviation

    def bounds(self, candidate):
        mean, spread = self.peaks[candidate.micro_batch], Z * self.deviation
        return Corrected(mean, mean - spread, mean + spread)

    def largest(self, rung, usable, sizes, bound="mean"):
        largest = 0
        for size in sizes:
            if getattr(self.bounds(rung.at(size)), bound) > usable:
                break
            largest = size
        return largest


def grown(context, peaks, deviation, edges=None):
    bounds = context(target="1600", budget=1000)  # 16 samples, of which 1, 2, 3, 4, 6, 8 and 16 save steps
    known = {1: "ok"} if edges is None else edges
    found = Grower(Candidate(micro_batch=1), Growth(), known, bounds, Told(peaks, deviation)).go()
    assert isinstance(found, Next)
    return found.micro_batch


def line(slope, beside=0):
    return {size: beside + slope * size for size in range(1, 17)}


@pytest.mark.parametrize(("deviation", "size"), [(10, 6), (40, 6), (80, 4)])
def test_growth_goes_at_once_to_what_most_likely_fits(deviation, size, context):
    # 6 takes 950 of 1,000: with deviations of 40 it fits in nine of ten cases, and only 4 surely does.
    peaks = line(150, beside=50)
    bounds = Told(peaks, deviation).bounds(Candidate(micro_batch=6))
    assert (bounds.probability_within(1000) >= LIKELY) is (size == 6)
    assert grown(context, peaks, deviation) == size


def test_behind_what_did_not_fit_growth_goes_to_what_surely_fits(context):
    peaks = line(150, beside=50) | {3: 930}  # likely, and not surely
    assert grown(context, peaks, 60, {1: "ok", 4: "oom"}) == 2
    assert grown(context, peaks, 60, {1: "ok"}) > 2


def test_a_micro_batch_that_is_the_whole_global_batch_is_not_bounded_by_what_adds_to_gradients(context):
    peaks = line(10, beside=900)
    assert peaks[11] > 1000
    peaks[16] = 940  # nothing is kept beside it from one micro-step to the next
    assert grown(context, peaks, 5) == 16
