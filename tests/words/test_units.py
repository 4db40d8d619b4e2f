import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import nearest
from autotune.specs import GlobalBatch
from autotune.units import (
    format_bytes,
    format_counted,
    format_duration,
    format_size,
    format_slowdown,
    parse_bytes,
    parse_count,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4M", 4_000_000),
        ("64K", 64_000),
        ("64Ki", 65_536),
        ("1G", 10**9),
        ("4,000,000", 4_000_000),
        ("1.5k", 1500),
    ],
)
def test_counts_are_decimal_unless_binary_is_asked_for(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("80GiB", 80 * 2**30), ("80GB", 80 * 10**9), ("1536MiB", 1536 * 2**20), ("512", 512)]
)
def test_memory_keeps_binary_and_decimal_apart(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "4X", "-3", "1.2.3", "1.0001", "GiB", "4 M M"])
def test_nonsense_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write it like"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1.5s", 1.5), ("10m", 600), ("1h30m", 5400), ("90", 90), ("20ms", 0.02)]
)
def test_durations(text, value):
    assert parse_duration(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "soon", "10x", "nan", "-5", "1h and"])
def test_durations_refuse_nonsense(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_printed_sizes_read_back_exactly(count):
    assert parse_bytes(format_size(count)) == count


def test_the_screen_shows_binary_units():
    assert format_bytes(3 * 2**30) == "3.00 GiB"
    assert format_bytes(512 * 2**20) == "512 MiB"
    assert format_duration(185) == "3m 05s"
    assert format_counted(1, "micro-step") == "1 micro-step"
    assert format_counted(2000, "micro-step") == "2,000 micro-steps"
    assert format_slowdown(0.036) == "3.6% slower"
    assert format_slowdown(4.643) == "5.6 times as long"


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("512samples", 512, "samples"),
        ("512 samples", 512, "samples"),
        ("1 sequence", 1, "samples"),
        ("64Ki tokens", 65536, "tokens"),
        ("64Kitokens", 65536, "tokens"),
        (" 4M ", 4_000_000, "tokens"),
        ("4,000,000", 4_000_000, "tokens"),
    ],
)
def test_a_global_batch_may_be_glued_to_its_unit(text, amount, unit):
    assert GlobalBatch.parse(text) == GlobalBatch(amount=amount, unit=unit)


@pytest.mark.parametrize("text", ["", "4X", "samples", "512 apples", "512s", "4 M M"])
def test_a_global_batch_that_is_none_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="write it like 4M"):
        GlobalBatch.parse(text)


@pytest.mark.timeout(20)
def test_a_long_text_is_refused_at_once():
    for text in ("1" + " " * 10**6 + "x", "1" * 10**5 + "x", "1 " + "tokens " * 10**5):
        with pytest.raises(ValueError, match="write it like"):
            GlobalBatch.parse(text)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("gtp2", "did you mean gpt2?"),
        ("compild", "did you mean compiled?"),
        ("nope", "valid: compiled, gpt2"),
    ],
)
def test_only_what_is_near_is_suggested(typed, said):
    assert nearest(typed, ["compiled", "gpt2"]) == said
