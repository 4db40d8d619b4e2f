"""Put what `benchmarks.ranks` measured into the page on several ranks.

    python -m benchmarks.ranks_page --write docs/ranks.md

Only what stands between the marks is made; the page's own sentences stay.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from autotune.units import MIB
from benchmarks.markdown import block, fill, source, table
from benchmarks.recording import RESULTS

RECORD = RESULTS / "ranks.json"
HEADS = (
    "sharding", "ranks", "peak", "predicted", "beyond it", "parameters", "gradients", "optimizer state", "step",
    "communicating",
)  # fmt: skip
PARTS = ("parameters", "gradients", "optimizer_state")


def page(written: str, document: dict[str, Any]) -> str:
    """Return the page with the record's numbers between its marks."""
    made = [*measured(document["rows"]), *_notes(document["rows"]), source(document)]
    return fill(written, "benchmarks/ranks_page.py", block(made))


def measured(rows: list[dict[str, Any]]) -> list[str]:
    """Return one table for each model as Markdown: MiB of the fullest rank, and seconds of a global step."""
    lines: list[str] = []
    for tensors in (False, True):
        own = (_cells(row) for row in rows if row["case"].startswith("Llama") == tensors)
        lines += [*table(HEADS, own), ""]
    return lines


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    """Return in words how far peaks are beyond their predictions, and which rows have none."""
    beyond = {
        several: [
            (row["peak"] - row["predicted"]) / MIB
            for row in rows
            if row["predicted"] and (row["ranks"] > 1) == several
        ]
        for several in (False, True)
    }
    lines = [
        f"Beyond the prediction: {min(beyond[True]):.0f} to {max(beyond[True]):.0f} MiB over several ranks, "
        f"{min(beyond[False]):.0f} to {max(beyond[False]):.0f} MiB on one rank alone."
    ]
    lines += [
        f"Not predicted: {row['case']} ({row['no_prediction']})." for row in rows if row["predicted"] is None
    ]
    return lines


def _cells(row: dict[str, Any]) -> list[str]:
    held = {part: max(rank[part] for rank in row["held_by_rank"]) for part in PARTS}
    predicted = row["predicted"]
    return [
        row["case"], str(row["ranks"]), _mib(row["peak"]), _mib(predicted),
        _mib(None if predicted is None else row["peak"] - predicted),
        *(f"{_mib(held[part])} / {_mib(row['formula'][part])}" for part in PARTS),
        _seconds(row["seconds_per_step"]), _seconds(row["seconds_communicating"]),
    ]  # fmt: skip


def _mib(count: float | None) -> str:
    return "-" if count is None else f"{count / MIB:,.1f}"


def _seconds(time: float | None) -> str:
    return "-" if time is None else f"{time:.2f} s"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", type=Path, required=True, metavar="PAGE.md")
    path = parser.parse_args().write
    path.write_text(page(path.read_text(), json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
