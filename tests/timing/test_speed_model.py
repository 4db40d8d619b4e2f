"""What probes of some candidates say of others: by which share, and how surely."""

import math

import pytest

from autotune.candidate import Candidate
from autotune.timing import speed_model
from autotune.timing.speed_model import (
    AXIS,
    DOUBT,
    NOISE,
    OTHER_AXIS,
    OWN,
    SCALES,
    SHARED,
    SIZE,
    AtLeast,
    Observed,
    SpeedModel,
    _cut_off,
)  # fmt: skip

PLAIN = Candidate(micro_batch=4)
LOSS, COMPILED, OFFLOADED = (
    Candidate(micro_batch=4, **one)
    for one in ({"loss": "chunked"}, {"compile": "regional"}, {"offload": "optimizer"})
)


def spread_of(candidate, *seen, at_least=()):
    """Return how unsure a model of probes is of another candidate."""
    return SpeedModel(seen, at_least).expect([candidate], [10.0])[0].spread


def probe(candidate, off):
    """Return a probe that took longer than predicted by this factor."""
    return Observed(candidate, 10.0, 10.0 * off, 0.01)


def test_where_techniques_come_out_as_predicted_others_are_trusted_more():
    one = spread_of(OFFLOADED, probe(PLAIN, 1.5))
    two = spread_of(OFFLOADED, probe(PLAIN, 1.5), probe(COMPILED, 1.5))
    three = spread_of(OFFLOADED, probe(PLAIN, 1.5), probe(COMPILED, 1.5), probe(LOSS, 1.5))
    assert three < two < one
    assert three < 0.75 * one


def test_where_they_come_out_otherwise_others_are_trusted_less():
    before = spread_of(OFFLOADED, probe(PLAIN, 1.5))
    assert spread_of(OFFLOADED, probe(PLAIN, 1.5), probe(COMPILED, 3.0)) > 1.2 * before
    # Only that a probe took far longer is known of one that ended early.
    assert spread_of(OFFLOADED, probe(PLAIN, 1.5), at_least=[AtLeast(COMPILED, 10.0, 30.0)]) > 1.2 * before


def test_how_far_off_all_predictions_are_together_says_next_to_nothing_of_techniques():
    """What all candidates share cancels wherever they are compared."""
    alike = spread_of(OFFLOADED, probe(PLAIN, 1.0))
    assert spread_of(OFFLOADED, probe(PLAIN, 1.8)) == pytest.approx(alike, rel=0.01)


def test_what_is_expected_is_the_mean_over_all_scales_weighted_by_their_evidence():
    """One probe, of a rung with one technique, and what follows for a rung with another: by hand."""
    residual, common = math.log(1.3), SHARED**2 + SIZE**2
    weights, means, variances = [], [], []
    for scale in SCALES:
        seen = common + scale**2 * (AXIS["compile"] ** 2 + OWN**2) + NOISE**2
        prior = common + scale**2 * (AXIS["offload"] ** 2 + OWN**2)
        density = math.exp(-(residual**2) / seen / 2) / math.sqrt(seen)
        weights.append(density * math.exp(-((math.log(scale) / DOUBT) ** 2) / 2))
        means.append(common / seen * residual)
        variances.append(prior - common**2 / seen)
    shares = [weight / sum(weights) for weight in weights]
    mean = sum(share * one for share, one in zip(shares, means, strict=True))
    square = sum(
        share * (variance + one**2) for share, one, variance in zip(shares, means, variances, strict=True)
    )
    (found,) = SpeedModel([probe(COMPILED, 1.3)]).expect([OFFLOADED], [10.0])
    assert found.seconds == pytest.approx(10.0 * math.exp(mean))
    assert found.spread == pytest.approx(math.sqrt(square - mean**2))


def test_before_any_probe_every_scale_counts_by_its_own_probability():
    shares = [math.exp(-((math.log(scale) / DOUBT) ** 2) / 2) for scale in SCALES]
    mean = sum(share * scale**2 for share, scale in zip(shares, SCALES, strict=True)) / sum(shares)
    variance = SHARED**2 + SIZE**2 + mean * (OTHER_AXIS**2 + OWN**2)
    assert "optimizer_kernel" not in AXIS
    assert spread_of(Candidate(micro_batch=4, optimizer_kernel="foreach")) == pytest.approx(
        math.sqrt(variance)
    )


def test_a_scale_that_is_out_of_question_changes_nothing(monkeypatch):
    seen = [probe(PLAIN, 1.0), *(probe(one, 2.0) for one in (COMPILED, LOSS, OFFLOADED))]
    other = Candidate(micro_batch=4, attention="eager")
    (whole,) = SpeedModel(seen).expect([other], [10.0])
    monkeypatch.setattr(speed_model, "SCALES", SCALES[1:])
    assert SpeedModel(seen).expect([other], [10.0])[0] == pytest.approx(whole)


@pytest.mark.parametrize("seconds", [10.0, 12.0, 20.0, 100.0, 1e6])
def test_a_bound_however_far_out_leaves_expectations_finite_and_above_what_they_were(seconds):
    before = SpeedModel([probe(PLAIN, 1.0)]).expect([COMPILED], [10.0])[0]
    after = SpeedModel([probe(PLAIN, 1.0)], [AtLeast(COMPILED, 10.0, seconds)]).expect([COMPILED], [10.0])[0]
    assert after.seconds > before.seconds
    assert after.seconds < 2 * seconds
    assert 0 < after.spread < 3


@pytest.mark.parametrize("away", [0.5, 4.0, 8.0, 12.0, 25.0, 40.0])
def test_what_a_bound_far_out_leaves_is_what_a_gaussian_has_beyond_it(away):
    told, log_above = _cut_off(0.0, 1.0, away)
    variance = 1 / (1 + 1 / told.variance)
    # From the tail itself, summed over the few widths in which nearly all of it lies.
    steps = [index * 1e-3 / max(1.0, away) for index in range(40_000)]
    weights = [math.exp(-away * step - step * step / 2) for step in steps]
    mean = math.fsum(w * s for w, s in zip(weights, steps, strict=True)) / math.fsum(weights)
    spread = math.fsum(w * (s - mean) ** 2 for w, s in zip(weights, steps, strict=True)) / math.fsum(weights)
    assert variance * told.logarithm / told.variance == pytest.approx(away + mean, rel=1e-3)
    assert variance == pytest.approx(spread, rel=0.02)
    area = math.log(math.fsum(weights) * steps[1]) - away * away / 2 - math.log(2 * math.pi) / 2
    assert log_above == pytest.approx(area, abs=2e-3)
