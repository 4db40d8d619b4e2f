"""The store of results at a million trials, under writers that are killed, and on both databases.

    python -m benchmarks.results_store [--parts scale,writers,answers,parquet] [--postgresql URL]

`scale` fills a store with 1,000 cells x 50 nights x 20 trials and compares the newest night, in a process of its own
whose peak memory the kernel tells. The first night goes in as any run's rows do; the others are copies of it that SQL
makes, with peaks and speeds of their own. `writers` has 8 processes add cells while others of them are killed with
SIGKILL and begin again from the first cell. `answers` asks both databases the same. `parquet` writes a night of the
same cells as one Parquet file a cell, which is what writers that share no lock can do, and reads what a comparison
needs of it: for `docs/log.md`, where the choice is told.

PostgreSQL is the one at --postgresql, else a server of its own, where Debian's is installed (`make cluster-deps`).

Targets: the comparison takes at most 10 s and 1 GiB; of what `add` returned from nothing is lost, and nothing is there
twice; both databases answer alike.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.results.comparison import compare_night
from autotune.results.find import open_store
from autotune.results.row import RunRows
from autotune.results.sql import SqlStore
from autotune.results.store import Query, Store
from autotune.results.thresholds import Thresholds
from autotune.units import GIB, MIB
from benchmarks.recording import RESULTS, record
from benchmarks.store_rows import fill, night_name, rows_of
from benchmarks.store_servers import database, postgresql
from benchmarks.store_writers import KILLS, write, writers
from benchmarks.verdict import SMALLEST, unmeasured, verdict

CELLS, NIGHTS = 1_000, 50
SECONDS, BYTES = 10.0, GIB
PARTS = ("scale", "writers", "answers", "parquet")


def compare(place: str, night: str) -> dict[str, Any]:
    """Compare a night: what the process of its own does."""
    began, spent = time.monotonic(), time.process_time()
    with open_store(place, create=False) as store:
        found = compare_night(store, "nightly", night, Thresholds())
        seconds = time.monotonic() - began
        return {
            "seconds": round(seconds, 2), "processor_seconds": round(time.process_time() - spent, 2),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "cells": len(found.cells),
            "changes": len(found.changes), "regressions": len(found.regressions),
        }  # fmt: skip


def scale(name: str, place: str, cells: int, nights: int) -> dict[str, Any]:
    with open_store(place) as store:
        assert isinstance(store, SqlStore)
        began = time.monotonic()
        fill(store, cells, nights)
        filled = time.monotonic() - began
        trials = store.count()
        began = time.monotonic()
        for number in range(1000):
            assert store.find_trial(f"cell{number % cells:05}-{1 + number % 9}", "2025") is not None
        look_up = (time.monotonic() - began) / 1000
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.results_store", "--compare", place, "--night", night_name(nights - 1)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    size = sum(file.stat().st_size for file in Path(place).glob("*.sqlite")) if "://" not in place else None
    return {
        "part": "scale", "store": name, "trials": trials, **json.loads(done.stdout),
        "look_up_seconds": round(look_up, 6), "filled_in_seconds": round(filled, 1), "file_bytes": size,
    }  # fmt: skip


def answers(one: str, other: str) -> dict[str, Any]:
    """Put the same into both, and ask them the same."""
    rng = random.Random(1)
    rows = [rows_of(f"cell{cell}", night, rng=rng) for night in range(10) for cell in range(8)]
    rows.append(
        RunRows(cell=rows[-8].cell.model_copy(update={"tokens_per_second": 850.0}), trials=rows[-8].trials)
    )
    newest = night_name(9)
    with open_store(one) as left, open_store(other) as right:
        for store in (left, right):
            store.add(rows)

        def asked(store: Store) -> dict[str, Any]:
            return {
                "sweeps": store.sweeps(), "nights": store.nights("nightly"), "cells": store.cells("nightly"),
                "states": store.cells("nightly", [newest], ["proven"]), "good": store.good("nightly", newest, 3),
                "fits": list(store.fits("nightly", [newest, night_name(8)])), "count": store.count(),
                "known": store.find_trial("cell1-3", "2025"), "all": list(store.query(Query())),
                "ooms": list(store.query(Query(outcome=("oom",), cell=("cell1",)))),
                "newest": list(store.query(Query(limit=7))), "since": list(store.query(Query(since=newest))),
                "compared": compare_night(store, "nightly", newest, Thresholds()),
                "verdicts": store.verdicts("nightly", newest) if isinstance(store, SqlStore) else (),
            }  # fmt: skip

        first, second = asked(left), asked(right)
        return {
            "part": "answers", "asked": len(first), "different": [key for key in first if first[key] != second[key]],
            "regressions": len(first["compared"].regressions),
        }  # fmt: skip


def parquet_files(cells: int) -> dict[str, Any]:
    """Write a night as a Parquet file for each cell, and read from it what a comparison needs."""
    import pyarrow
    from pyarrow import parquet

    with tempfile.TemporaryDirectory(prefix="autotune-parquet-") as folder:
        with open_store(Path(folder) / "store") as store:
            store.add(rows_of(f"cell{cell:05}", 0) for cell in range(cells))
            by_cell: dict[str, list[dict[str, Any]]] = {}
            for row in store.query(Query()):
                by_cell.setdefault(row["cell"], []).append(row)
        night = Path(folder) / "night=0"
        night.mkdir()
        began = time.process_time()
        for cell, rows in by_cell.items():
            parquet.write_table(pyarrow.Table.from_pylist(rows), night / f"{cell}.parquet")
        written = time.process_time() - began
        began = time.process_time()
        columns = ["cell", "candidate", "kind", "outcome", "peak", "reused"]
        count = sum(
            parquet.read_table(file, columns=columns).num_rows for file in sorted(night.glob("*.parquet"))
        )
        read = time.process_time() - began
    nights = Thresholds().nights + 1
    return {
        "part": "parquet", "files": cells, "trials": count, "processor_seconds_to_write": round(written, 2),
        "processor_seconds_to_read": round(read, 2), "processor_seconds_to_read_for_1000_cells": round(
            read / cells * CELLS * nights, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--stores", default="embedded,postgresql")
    parser.add_argument(
        "--postgresql", metavar="URL", default=None, help="URL of a server's database `postgres`"
    )
    parser.add_argument("--nights", type=int, default=NIGHTS)
    parser.add_argument("--compare", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--night", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=4, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    given = parser.parse_args()
    if given.compare is not None:
        print(json.dumps(compare(given.compare, given.night)))
        return 0
    if given.write is not None:
        place, writer, cells, log = given.write
        write(place, int(writer), int(cells), Path(log))
        return 0
    parts, stores = given.parts.split(","), given.stores.split(",")
    cells, nights, written, kills = (20, 9, 4, 2) if given.smallest else (CELLS, given.nights, 40, KILLS)
    if given.smallest and given.postgresql is None:
        stores = ["embedded"]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="autotune-store-") as folder:

        def measure(name: str, place: Any) -> None:
            if "scale" in parts:
                rows.append(scale(name, place("scale"), cells, nights))
                Console().print(rows[-1])
            if "writers" in parts:
                rows.append(writers(name, place("writers"), written, kills))
                Console().print(rows[-1])

        if "embedded" in stores:
            measure("embedded", lambda part: str(Path(folder) / part))
        if "postgresql" in stores:
            try:
                with postgresql(given.postgresql) as url:
                    measure("postgresql", lambda part: database(url, part))
                    if "answers" in parts:
                        rows.append(answers(str(Path(folder) / "answers"), database(url, "answers")))
                        Console().print(rows[-1])
            except (RuntimeError, ImportError) as error:
                if "embedded" not in stores:
                    raise unmeasured("results_store", str(error)) from None
                Console().print(f"PostgreSQL is left out: {error}")
        if "parquet" in parts:
            rows.append(parquet_files(20 if given.smallest else 500))
            Console().print(rows[-1])
    path = record("results_store", rows, given.out, smallest=given.smallest)
    Console().print(f"written: {path}")
    missed = []
    for row in rows:
        where = f"{row['part']}, {row.get('store', 'both')}"
        if row["part"] == "scale" and (row["seconds"] > SECONDS or row["peak_bytes"] > BYTES):
            missed.append(f"{where}: {row['seconds']} s and {row['peak_bytes'] / MIB:.0f} MiB")
        if row["part"] == "writers" and (row["lost"] or row["twice"] or row["incomplete"]):
            missed.append(
                f"{where}: {row['lost']} lost, {row['twice']} twice, {row['incomplete']} incomplete"
            )
        if row["part"] == "answers" and row["different"]:
            missed.append(f"{where}: {', '.join(row['different'])}")
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
