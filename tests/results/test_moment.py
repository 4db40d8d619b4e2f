"""Since when nights count: a day or a moment, in whichever way people write it."""

from __future__ import annotations

import datetime

import pytest

from autotune.errors import InputError
from autotune.results.store import Query
from autotune.results.thresholds import Thresholds


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("20261122", "20261122"),
        ("2026-11-22", "20261122"),
        (20261122, "20261122"),  # as YAML reads it
        (datetime.date(2026, 11, 22), "20261122"),
        ("2026-11-22T03:15", "20261122T031500Z"),
        ("2026-11-22 03:15:30+02:00", "20261122T011530Z"),
        ("20261122T031500Z", "20261122T031500Z"),
        ("20261122T031500Z-2", "20261122T031500Z-2"),
        (None, None),
    ],
)
def test_a_day_or_a_moment_is_read_as_nights_are_named(written, read):
    assert Query(since=written).since == Thresholds(since=written).since == read


@pytest.mark.parametrize("written", ["yesterday", "20261301", "2026-11-31", "", "2026", "x20261122T031500Z"])
def test_what_is_neither_is_refused_for_as_text_it_would_leave_out_every_night_or_none(written):
    for kind in (Query, Thresholds):
        with pytest.raises(InputError) as caught:
            kind.load({"since": written}, "options")
        assert caught.value.about == ("since",)
