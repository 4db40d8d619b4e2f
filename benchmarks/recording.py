"""Write what a benchmark measured, with all that is needed to judge it: machine, versions, date, command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.environment import look_around

RESULTS = Path(__file__).parent / "results"


def record(
    name: str,
    rows: list[dict[str, Any]],
    folder: Path,
    *,
    smallest: bool = False,
    cases: Sequence[str] | None = None,
    **summary: Any,
) -> Path:
    """Write rows and summary to `<folder>/<name>.json` and return its path.

    The smallest case goes to a file of its own, and so do `cases`, those that were asked for by name: they leave the
    record of all cases as it is.
    """
    name = "-".join([name, *(["smallest"] if smallest else cases or [])])
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(
            ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *_asked(sys.argv[1:])]
        ),
        "environment": look_around().environment(),
        **summary,
        "rows": rows,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def _asked(arguments: list[str]) -> list[str]:
    """Return arguments without the folder that the record was written to: it is of one machine."""
    kept = [argument for argument in arguments if not argument.startswith("--out=")]
    while "--out" in kept:
        place = kept.index("--out")
        del kept[place : place + 2]
    return kept
