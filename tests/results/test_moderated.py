import pytest

from autotune.results.moderated import pooled, quantile, upper_tail


@pytest.mark.parametrize(
    ("level", "degrees", "value"),
    [(0.025, 1, 12.706), (0.025, 4, 2.776), (0.001, 10, 4.144), (0.0005, 6, 5.959), (0.001, 120, 3.160)],
)
def test_quantiles_are_those_of_tables(level, degrees, value):
    """NIST/SEMATECH e-Handbook, 1.3.6.7.2."""
    assert quantile(level, degrees) == pytest.approx(value, abs=6e-4)
    assert upper_tail(quantile(level, degrees), degrees) == pytest.approx(level, rel=1e-9)


def test_variances_that_agree_are_worth_all_degrees_and_others_few():
    same, degrees = pooled([1.0] * 20, [6.0] * 20)
    assert degrees == 120
    assert same == pytest.approx(1.0, rel=0.25)  # so alike are variances of 6 degrees seldom
    _, degrees = pooled([10.0 ** (place % 5) for place in range(20)], [6.0] * 20)
    assert degrees < 2
