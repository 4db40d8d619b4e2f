"""Corrections by probes: what they start from, what they learn, and how sure they are of it."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.memory.calibration import Calibration, Observation, Prior
from autotune.units import GIB, MIB

PRIOR = Prior(offset=200 * MIB)


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


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(1e6, 1e11), st.floats(0.9, 1.2)), min_size=1, max_size=12
    )
)
def test_more_probes_never_make_a_prediction_less_sure(points):
    seen = [Observation(rung, raw, raw * factor) for rung, raw, factor in points]
    widths = []
    for count in range(len(seen) + 1):
        corrected = Calibration(PRIOR, seen[:count]).correct("a", 1e10)
        widths.append(corrected.high - corrected.mean)
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(widths))
