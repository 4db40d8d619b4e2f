"""Markdown that the pages under docs/ are filled with: places between marks, tables, and where a record comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.recording import RESULTS

NOT_MEASURED = "not measured"


def fill(written: str, maker: str, made: str, what: str = "measured") -> str:
    """Return the page with `made` in the place of the script `maker` (a path). Raises SystemExit where it has none."""
    begin, final = f"<!-- {what}: made by {maker} -->\n", f"<!-- end of {what} -->\n"
    before, found, rest = written.partition(begin)
    _, end, after = rest.partition(final)
    if not (found and end):
        raise SystemExit(
            f"the page has no place for the numbers: it needs {begin.strip()} and {final.strip()}"
        )
    return before + begin + made + end + after


def block(lines: Iterable[str]) -> str:
    """Return lines as the text between two marks, with an empty line at both ends."""
    return "\n".join(["", *lines, "", ""])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [_row(heads), "|" + "---|" * len(heads), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def read(name: str) -> dict[str, Any]:
    """Return a record of `benchmarks/results` by its name, as its benchmark wrote it."""
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return document


def source(document: dict[str, Any]) -> str:
    """Return a sentence that says which record numbers are from: file, command, day, machine and versions."""
    found, script = document["environment"], document["command"].split()[2]
    day = document["date"].partition("T")[0]
    return (
        f"Record: `benchmarks/results/{document['benchmark']}.json`, made by `python -m {script}` on {day} "
        f"({found['processor']}; torch {found['torch']}, transformers {found['transformers']})."
    )


def off(errors: Iterable[float]) -> str:
    """Return how far predictions were off: the median and the worst of their relative errors."""
    sizes = sorted(map(abs, errors))
    if not sizes:
        return "not predicted"
    half = len(sizes) // 2
    median = (sizes[half] + sizes[~half]) / 2
    return f"{median:.2%} in the median, {sizes[-1]:.2%} at worst"
