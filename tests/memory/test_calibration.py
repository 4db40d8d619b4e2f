"""Corrections by probes: what they start from, what they learn, and how sure they are of it."""

import itertools
import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.memory.calibration import Calibration, Observation, Prior
from autotune.units import GIB, MIB

PRIOR = Prior(offset=200 * MIB)
OF_SPEED = Prior(offset=0.3, slope=0.0, rung_offset=0.1, rung_slope=0.0, noise=0.0, noise_floor=0.05)
POINTS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(1e6, 1e11), st.floats(0.9, 1.2)), max_size=12)


def test_without_probes_a_prediction_is_the_raw_one_with_an_interval():
    corrected = Calibration(PRIOR).correct("a", 10 * GIB)
    assert corrected.mean == 10 * GIB
    assert corrected.low < 10 * GIB - 400 * MIB
    assert corrected.high > 10 * GIB + 400 * MIB


def test_one_probe_teaches_every_rung_its_offset():
    calibration = Calibration(PRIOR, [Observation("a", 4 * GIB, 4 * GIB + 300 * MIB)])
    same, other = calibration.correct("a", 4 * GIB), calibration.correct("b", 4 * GIB)
    assert same.mean == pytest.approx(4 * GIB + 300 * MIB, rel=0.002)
    assert 4 * GIB + 150 * MIB < other.mean < same.mean
    assert other.high - other.low > same.high - same.low
    before = Calibration(PRIOR).correct("b", 4 * GIB)
    assert other.high - other.low < (before.high - before.low) * 0.6


def test_probes_of_a_rung_teach_its_slope():
    sizes = (2, 4, 8)
    seen = [Observation("a", size * GIB, 1.03 * size * GIB + 100 * MIB) for size in sizes]
    corrected = Calibration(PRIOR, seen).correct("a", 16 * GIB)
    assert corrected.mean == pytest.approx(1.03 * 16 * GIB + 100 * MIB, rel=0.006)
    assert corrected.low <= 1.03 * 16 * GIB + 100 * MIB <= corrected.high


def test_intervals_hold_what_they_promise():
    generator = random.Random(1)
    inside = 0
    for _ in range(400):
        offset, slope = generator.gauss(0, PRIOR.offset), generator.gauss(0, PRIOR.slope)
        rung_offset, rung_slope = generator.gauss(0, PRIOR.rung_offset), generator.gauss(0, PRIOR.rung_slope)

        def measure(raw, shift=offset + rung_offset, growth=slope + rung_slope):
            noise = generator.gauss(0, ((PRIOR.noise * raw) ** 2 + PRIOR.noise_floor**2) ** 0.5)
            return raw * (1 + growth) + shift + noise

        seen = [Observation("a", raw, measure(raw)) for raw in (3 * GIB, 5 * GIB)]
        corrected = Calibration(PRIOR, seen).correct("a", 9 * GIB)
        inside += corrected.low <= measure(9 * GIB) <= corrected.high
    assert 0.91 <= inside / 400 <= 0.985


@given(POINTS.filter(bool))
def test_more_probes_never_make_a_prediction_less_sure(points):
    seen = [Observation(rung, raw, raw * factor) for rung, raw, factor in points]
    widths = []
    for count in range(len(seen) + 1):
        corrected = Calibration(PRIOR, seen[:count]).correct("a", 1e10)
        widths.append(corrected.high - corrected.mean)
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(widths))


def dense(prior, seen, rung, raw):
    """Return mean and 95% half-width as a Gaussian process gives them, by the matrix of all covariances."""

    def covariance(one, other):
        shared = prior.offset**2 + prior.slope**2 * one[1] * other[1]
        own = prior.rung_offset**2 + prior.rung_slope**2 * one[1] * other[1]
        return shared + own * (one[0] == other[0])

    def noise(size):
        return (prior.noise * size) ** 2 + prior.noise_floor**2

    matrix = numpy.array([[covariance(one, other) for other in seen] for one in seen])
    matrix += numpy.diag([noise(one.raw) for one in seen])
    at = numpy.array([covariance(one, (rung, raw)) for one in seen])
    mean = raw + at @ numpy.linalg.solve(matrix, numpy.array([one.measured - one.raw for one in seen]))
    variance = covariance((rung, raw), (rung, raw)) + noise(raw) - at @ numpy.linalg.solve(matrix, at)
    return mean, 1.96 * variance**0.5


@pytest.mark.parametrize("prior", [PRIOR, Prior(offset=0.0, slope=0.03)], ids=["as usual", "no offset"])
@given(points=POINTS.filter(bool), raw=st.floats(1e6, 1e11))
def test_each_rung_is_corrected_as_by_the_matrix_of_all_probes(prior, points, raw):
    seen = [Observation(rung, size, size * factor) for rung, size, factor in points]
    calibration = Calibration(prior, seen)
    for rung in "abcd":
        mean, half_width = dense(prior, seen, rung, raw)
        corrected = calibration.correct(rung, raw)
        assert corrected.mean == pytest.approx(mean, rel=1e-6)
        assert corrected.high - corrected.mean == pytest.approx(half_width, rel=1e-4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-2, 2)), min_size=1, max_size=12))
def test_so_is_speed_whose_raw_predictions_are_none(points):
    seen = [Observation(rung, 0.0, off) for rung, off in points]
    for rung in "abcd":
        mean, half_width = dense(OF_SPEED, seen, rung, 0.0)
        corrected = Calibration(OF_SPEED, seen).correct(rung, 0.0)
        assert corrected.mean == pytest.approx(mean, rel=1e-9, abs=1e-9)
        assert corrected.high - corrected.mean == pytest.approx(half_width, rel=1e-6)


@given(POINTS)
def test_one_probe_after_the_other_says_what_all_at_once_do(points):
    seen = [Observation(rung, size, size * factor) for rung, size, factor in points]
    calibration = Calibration(PRIOR)
    for one in seen:
        calibration = calibration.also(one)
    assert calibration.correct("a", 1e10) == Calibration(PRIOR, seen).correct("a", 1e10)


class Counted(float):
    """A number that counts how often something is multiplied by it."""

    times = 0

    def __mul__(self, other):
        Counted.times += 1
        return float(self) * other

    __rmul__ = __mul__


def multiplications(count):
    seen = [Observation(f"{index % 30}", Counted(GIB + index * MIB), 2.0 * GIB) for index in range(count)]
    Counted.times = 0
    calibration = Calibration(PRIOR, seen)
    for rung in range(30):
        calibration.correct(f"{rung}", float(GIB))
    return Counted.times


def test_twice_as_many_probes_take_twice_as_many_multiplications():
    few, many = multiplications(500), multiplications(1000)
    assert few > 0
    assert many == 2 * few
