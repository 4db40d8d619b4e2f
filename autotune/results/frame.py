"""Trials as a pandas DataFrame. pandas is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autotune.results.columns import COLUMNS, Type, type_of

if TYPE_CHECKING:
    import pandas

_DTYPES: dict[Type, str] = {
    "text": "string", "whole": "Int64", "real": "Float64", "yes or no": "boolean", "list of real": "object",
}  # fmt: skip
"""Types that know what is missing: a peak that was not measured is <NA>, and no number becomes a float by it."""


def frame(rows: Iterable[dict[str, Any]]) -> pandas.DataFrame:
    """Return a row for each trial; without any, the columns are there all the same."""
    import pandas

    values: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in rows:
        for name, column in values.items():
            column.append(row[name])
    return pandas.DataFrame(
        {name: pandas.Series(column, dtype=_DTYPES[type_of(name)]) for name, column in values.items()}
    )
