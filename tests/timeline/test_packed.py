"""Plain data as bytes, and what is not such bytes."""

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.timeline.packed import LONG, pack, unpack

NUMBERS = st.integers(-(2**63), 2**63 - 1)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(allow_nan=False), st.text(max_size=5))
LISTS = st.one_of(
    st.lists(NUMBERS, max_size=40),
    st.lists(st.integers(-128, 127), min_size=LONG, max_size=40),
    st.lists(st.booleans(), min_size=LONG, max_size=20),
    st.lists(LEAVES, max_size=20),
)
DATA = st.recursive(
    LEAVES | LISTS,
    lambda inner: st.dictionaries(st.text(min_size=2, max_size=4), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(data=DATA)
def test_what_is_packed_is_unpacked(data):
    assert unpack(pack(data)) == data


@pytest.mark.parametrize("low", [-(2**63), -(2**31), -(2**15), -129, -128, 0])
@pytest.mark.parametrize("high", [127, 128, 2**15, 2**31 - 1, 2**63 - 1])
def test_each_width_of_numbers_is_kept(low, high):
    assert unpack(pack({"numbers": [low, high] * LONG})) == {"numbers": [low, high] * LONG}


def test_a_number_of_more_than_64_bits_is_refused():
    with pytest.raises(OverflowError):
        pack([2**63] * LONG)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:30], lambda c: b"", lambda c: b"{}", lambda c: c[:-1] + b"x"]
)
def test_what_is_no_packed_data_is_refused(damage):
    with pytest.raises(ValueError, match="not packed data"):
        unpack(damage(pack(list(range(1000)))))


def test_packed_data_without_its_end_is_refused():
    whole = zlib.decompress(pack(list(range(1000))))
    with pytest.raises(ValueError, match="buffer"):
        unpack(zlib.compress(whole[:-100]))
    with pytest.raises(ValueError, match="not packed data"):
        unpack(zlib.compress(b"12"))
