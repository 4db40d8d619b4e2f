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
from benchmarks.markdown import fill
from benchmarks.recording import RESULTS

RECORD = RESULTS / "ranks.json"
HEADS = (
    "sharding", "ranks", "peak", "predicted", "beyond it", "parameters", "gradients", "optimizer state", "step",
    "communicating",
)  # fmt: skip
PARTS = ("parameters", "gradients", "optimizer_state")


def page(written: str, document: dict[str, Any]) -> str:
    """Return the page with the record's numbers between its marks."""
    return fill(written, "benchmarks/ranks_page.py", measured(document["rows"]))


def measured(rows: list[dict[str, Any]]) -> str:
    """Return one table for each model as Markdown: MiB of the fullest rank, and seconds of a global step."""
    lines: list[str] = []
    for tensors in (False, True):
        lines += [
            "",
            f"| {' | '.join(HEADS)} |",
            "|---" * len(HEADS) + "|",
            *(_line(row) for row in rows if row["case"].startswith("Llama") == tensors),
        ]
    return "\n".join([*lines, "", ""])


def _line(row: dict[str, Any]) -> str:
    held = {part: max(rank[part] for rank in row["held_by_rank"]) for part in PARTS}
    predicted = row["predicted"]
    cells = [
        row["case"], str(row["ranks"]), _mib(row["peak"]), _mib(predicted),
        _mib(None if predicted is None else row["peak"] - predicted),
        *(f"{_mib(held[part])} / {_mib(row['formula'][part])}" for part in PARTS),
        _seconds(row["seconds_per_step"]), _seconds(row["seconds_communicating"]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


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
