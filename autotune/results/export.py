"""Trials as files: CSV, JSON and Parquet, written row by row, however many there are."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TextIO

from autotune.errors import InputError, unwritable
from autotune.results.columns import COLUMNS, Type, type_of

Format = Literal["csv", "json", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "json", "parquet")
GROUP = 50_000
"""Rows of a Parquet file that are held at a time."""


def write_csv(rows: Iterable[dict[str, Any]], file: TextIO) -> int:
    """Write a header and a line for each row; return how many. What is missing is empty, lists are JSON."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    count = 0
    for row in rows:
        writer.writerow(_cell(row[name]) for name in COLUMNS)
        count += 1
    return count


def write_json(rows: Iterable[dict[str, Any]], file: TextIO) -> int:
    """Write one JSON array with an object for each row, each in a line; return how many."""
    file.write("[")
    count = 0
    for row in rows:
        file.write(",\n" if count else "\n")
        count += 1
        file.write(json.dumps({name: row[name] for name in COLUMNS}))
    file.write("\n]\n")
    return count


def write_parquet(rows: Iterable[dict[str, Any]], file: Path) -> int:
    """Write a Parquet file; return how many rows it has. Raises InputError where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow; install it: pip install 'autotune[parquet]'", about="out"
        ) from None
    types: dict[Type, Any] = {
        "text": pyarrow.string(), "whole": pyarrow.int64(), "real": pyarrow.float64(), "yes or no": pyarrow.bool_(),
        "list of real": pyarrow.list_(pyarrow.float64()),
    }  # fmt: skip
    schema = pyarrow.schema([(name, types[type_of(name)]) for name in COLUMNS])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for group in _groups(rows):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def write_file(rows: Iterable[dict[str, Any]], file: Path, kind: Format) -> int:
    """Write rows to a file, which is there whole or not at all; return how many. Raises InputError."""
    temporary = file.with_name(f".{file.name}.writing")
    try:
        if kind == "parquet":
            count = write_parquet(rows, temporary)
        else:
            write: Callable[[Iterable[dict[str, Any]], TextIO], int] = (
                write_csv if kind == "csv" else write_json
            )
            with temporary.open("w", encoding="utf-8", newline="") as out:
                count = write(rows, out)
        temporary.replace(file)
    except OSError as error:
        raise unwritable(f"--out {file} cannot be written", error, "out") from None
    finally:
        with suppress(OSError):  # where nothing can be written nothing can be removed
            temporary.unlink(missing_ok=True)
    return count


def text(rows: Iterable[dict[str, Any]], kind: Literal["csv", "json"]) -> str:
    """Return rows as the text of a file."""
    out = io.StringIO()
    (write_csv if kind == "csv" else write_json)(rows, out)
    return out.getvalue()


def format_of(file: Path, asked: str | None) -> Format:
    """Return what a file is to be: as it was asked for, else by its suffix. Raises InputError."""
    name = asked or file.suffix.removeprefix(".").lower()
    for known in FORMATS:
        if name == known:
            return known
    raise InputError(
        f"--out {file}: name it .csv, .json or .parquet, or say which with --format", about="out"
    )


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, tuple | list) else value


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    iterator = iter(rows)
    while group := list(itertools.islice(iterator, GROUP)):
        yield group
