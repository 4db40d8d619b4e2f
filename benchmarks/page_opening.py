"""How long the page of a run with 1,000 trials takes to make and to open in Chromium, and how large it is.

    python -m benchmarks.page_opening [--trials 1000]

Opened is a page when its second frame after loading is drawn, by the browser's own clock from the start of navigation,
with nothing of it kept from before. A phone's width is opened too: there, each trial is a card.

Targets: a page of 1,000 trials opens within 2 s at every width, and is at most 6 MB.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.reporting.page import page
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict
from tests.fakes.many_trials import with_trials
from tests.fakes.runs import BIG
from tests.page.browser import MODULES, browser, looked_at, made

OPENING, SIZE = 2.0, 6e6
"""Targets: seconds, and bytes."""
TRIALS, REPEATS = 1000, 5
"""Of a time the least counts: another process can only add to it."""
WIDTHS = (390, 1440)


def opened(folder: Path, trials: int, repeats: int) -> dict[str, Any]:
    """Make the page of a run with so many trials, open it at each width, and return what that took."""
    run = with_trials(made(folder, BIG), BIG, trials)
    start = time.monotonic()
    text = page(run)
    seconds = time.monotonic() - start
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    pages = {f"page-{number}": file for number in range(repeats)}
    seen = looked_at(folder, folder, pages, widths=WIDTHS, themes=["light"], quick=True, short=True)
    assert all(one["said"] == [] for one in seen)
    least = {
        str(width): min(one["times"]["shown"] for one in seen if one["width"] == width) / 1000
        for width in WIDTHS
    }
    return {
        "trials": trials,
        "bytes": file.stat().st_size,
        "making_seconds": seconds,
        "opening_seconds": least,
    }


def main() -> int:
    """Measure, print and record it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if browser() is None or shutil.which("node") is None or not (MODULES / "node_modules").is_dir():
        raise unmeasured("page_opening", "it needs Chromium and node, and what `make test-page` installs")
    with tempfile.TemporaryDirectory() as folder:
        trials, repeats = (20, 1) if options.smallest else (options.trials, REPEATS)
        row = opened(Path(folder), trials, repeats)
    table = Table("width", "opened in")
    for width, seconds in row["opening_seconds"].items():
        table.add_row(f"{width} pixels", f"{seconds:.2f} s")
    console = Console()
    console.print(table)
    console.print(f"{trials:,} trials: {row['bytes'] / 1e6:.2f} MB, made in {row['making_seconds']:.2f} s")
    console.print(record("page_opening", [row], options.out, smallest=options.smallest))
    missed = []
    if not options.smallest:
        for width, seconds in row["opening_seconds"].items():
            if seconds > OPENING:
                missed.append(f"opens within {OPENING:g} s: {seconds:.2f} s at {width} pixels")
        if row["bytes"] > SIZE:
            missed.append(f"at most {SIZE / 1e6:g} MB: {row['bytes'] / 1e6:.2f} MB")
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
