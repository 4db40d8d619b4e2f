"""The tables of our strategies beside other libraries' searches, from their records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.markdown import block, read, source, table

TITLES = {
    "accelerate": "accelerate's `find_executable_batch_size`",
    "Lightning power": "Lightning's `scale_batch_size`, power",
    "Lightning binsearch": "Lightning's `scale_batch_size`, binsearch",
    "Optuna TPE alone": "Optuna's TPE, without predictions",
}
"""What a peer is called, where that says more than its name in the record."""
BATCH_SIZE_ALONE = ("accelerate", "Lightning power", "Lightning binsearch", "Composer", "Ludwig")
"""The searches of the plain rung's micro-batch: they deliver nothing where it does not fit at any."""

Rows = Sequence[dict[str, Any]]


def peers() -> str:
    """Return what each search delivers on the recorded grids, and what that takes."""
    document = read("peers")
    rows: Rows = document["rows"]
    fits = {row["grid"] for row in rows if row["peer"] in BATCH_SIZE_ALONE and row["share"] > 0}

    def cells(own: Rows) -> list[str]:
        plain = [row["share"] for row in own if row["grid"] in fits]
        return [*_shares(own), f"{statistics.median(plain):.0%}", *_cost(own)]

    heads = (
        "search", "of the fastest, median", "at worst", f"median of the {len(fits)} where plain bf16 fits", "seconds",
        "probes", f"OOM probes, of all {len({row['grid'] for row in rows})}",
    )  # fmt: skip
    return block([*table(heads, _of_each(document, cells)), "", *_sources(document)])


def peers_live() -> str:
    """Return the same of live runs, with which configurations kept the global batch and survived."""
    document = read("peers_live")
    rows: Rows = document["rows"]
    cases = len({row["grid"] for row in rows})

    def cells(own: Rows) -> list[str]:
        kept, survived = (
            f"{sum(row[name] for row in own)} of {len(own)}" for name in ("keeps_global_batch", "survives")
        )
        return [*_shares(own), *_cost(own), kept, survived]

    heads = (
        "search", "of the fastest, median", "at worst", "seconds", "probes", f"OOM probes, of all {cases}",
        "keeps the global batch", "survives 50 more steps",
    )  # fmt: skip
    alone = [row for row in rows if row["peer"] in BATCH_SIZE_ALONE]
    ends, known = (
        _range(row["seconds"] for row in alone),
        _range(row["known_after"] or math.inf for row in alone),
    )
    said = (
        f"A search of the batch size alone ends after {ends} s, imports included, and `{document['ours']}` has "
        f"measured as fast a configuration after {known} s."
    )
    return block([*table(heads, _of_each(document, cells)), "", said, *_sources(document)])


def _of_each(document: dict[str, Any], cells: Callable[[Rows], list[str]]) -> list[list[str]]:
    """Return a line for each search: the default first, then our others, then the peers."""
    rows: Rows = document["rows"]
    ordered = sorted(
        rows, key=lambda row: (row["peer"] != document["ours"], not row["how"].startswith("ours"))
    )
    names = dict.fromkeys(row["peer"] for row in ordered)
    lines = []
    for name in names:
        own = [row for row in rows if row["peer"] == name]
        lines.append([_title(name, own[0]["how"]), *cells(own)])
    return lines


def _range(numbers: Iterable[float]) -> str:
    found = list(numbers)
    return f"{min(found):.0f} to {max(found):.0f}"


def _sources(document: dict[str, Any]) -> list[str]:
    installed = ", ".join(f"{package} {version}" for package, version in document["versions"].items())
    return [source(document), f"Libraries whose searches were run as installed: {installed}."]


def _title(name: str, how: str) -> str:
    if how.startswith("ours"):
        return f"`{name}`"
    return TITLES.get(name, name) + (" (its algorithm)" if how == "algorithm" else "")


def _shares(own: Rows) -> list[str]:
    shares = [row["share"] for row in own]
    return [f"{statistics.median(shares):.0%}", f"{min(shares):.0%}"]


def _cost(own: Rows) -> list[str]:
    """Return the median seconds and probes, and all probes that ran out of memory."""
    seconds, probes = (statistics.median(row[name] for row in own) for name in ("seconds", "probes"))
    return [f"{seconds:.0f}", f"{probes:g}", str(sum(row["oom"] for row in own))]
