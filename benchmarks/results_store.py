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
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.candidate import Candidate
from autotune.outcome import Oom
from autotune.results.comparison import compare_night
from autotune.results.find import open_store
from autotune.results.row import CellRow, Environment, RunRows, TrialRow
from autotune.results.sql import SqlStore
from autotune.results.store import Query, Store
from autotune.results.tables import TRIAL
from autotune.results.thresholds import Thresholds
from autotune.testing.arithmetic import ok
from autotune.units import GIB, MIB
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

CELLS, NIGHTS, TRIALS = 1_000, 50, 20
SECONDS, BYTES = 10.0, GIB
WRITERS, KILLS = 8, 24
HERE = Environment(device_kind="cpu", hardware="made up", evidence="measured", packages={"torch": "2.13.0"})
PARTS = ("scale", "writers", "answers", "parquet")


def night_name(number: int) -> str:
    return f"2026{1 + number // 28:02}{1 + number % 28:02}T000000Z"


def rows_of(cell: str, night: int, trials: int = TRIALS, rng: random.Random | None = None) -> RunRows:
    """Return the rows of one cell: micro-batches that fit, the rest out of memory."""
    shift = 1 + (rng.gauss(0, 0.005) if rng else 0.0)
    made = []
    for number in range(1, trials + 1):
        candidate = Candidate(micro_batch=number)
        fits = number <= trials * 3 // 4
        outcome = (
            ok(number * 40 * MIB, 0.1 * shift, 0.01, GIB) if fits else Oom(phase="forward", requested=GIB)
        )
        steps = tuple(0.1 * shift * (1 + 0.001 * step) for step in range(20))
        made.append(
            TrialRow(
                kind="proof" if number == trials // 2 else "probe", number=number, turn=int(number == trials // 2),
                time=f"2026-01-01T00:{number:02}:00+00:00", environment=HERE, candidate=candidate,
                outcome=outcome.model_copy(update={"step_seconds": steps}) if fits else outcome, seconds=10.0,
                key=f"{cell}-{number}", budget=GIB, fits=fits,
                **({"global_step": 0.5, "tokens_per_second": 1000.0 / shift, "interval": 5.0} if fits else {}),
            )
        )  # fmt: skip
    row = CellRow(
        sweep="nightly", night=night_name(night), cell=cell, run=f"cells/{cell}", state="proven", asked=cell,
        model="gpt2", lines=100, environment=HERE, budget=GIB, winner=Candidate(micro_batch=trials // 2),
        tokens_per_second=1000.0 / shift, interval=5.0, drift=0.005, global_step=0.5, step_seconds=(0.1,) * 20,
        peak=trials // 2 * 40 * MIB, trials=trials,
    )  # fmt: skip
    return RunRows(cell=row, trials=tuple(made))


def fill(store: SqlStore, cells: int, nights: int) -> None:
    """Add the first night as runs are added, and the others as copies of it."""
    rng = random.Random(0)
    for start in range(0, cells, 100):
        names = range(start, min(cells, start + 100))
        store.add(rows_of(f"cell{name:05}", 0, rng=rng) for name in names)
    columns = [name for name in _columns(store) if name not in {"id", "night", "tokens_per_second"}]
    listed = ", ".join(columns)
    trial = ", ".join(f"t.{name}" for name in TRIAL[1:] if name != "peak")
    rest = ", ".join(name for name in TRIAL[1:] if name != "peak")
    for night in range(1, nights):
        with store.transaction() as connection:
            # A few thousandths more or less, the same in both databases.
            jitter = f"(1 + ((id * 7919 + {night * 104729}) % 101 - 50) / 10000.0)"
            store.execute(
                connection,
                f"INSERT INTO cells (night, tokens_per_second, {listed}) "
                f"SELECT ?, tokens_per_second * {jitter}, {listed} FROM cells WHERE night = ?",
                (night_name(night), night_name(0)),
            )
            copied = (
                "FROM cells AS n JOIN cells AS f ON f.sweep = n.sweep AND f.cell = n.cell AND f.night = ?"
            )
            store.execute(
                connection,
                f"INSERT INTO trials (cell_id, peak, {rest}) SELECT n.id, t.peak + (n.id + t.number) % 1000, {trial} "
                f"{copied} JOIN trials AS t ON t.cell_id = f.id WHERE n.night = ?",
                (night_name(0), night_name(night)),
            )
            store.execute(
                connection,
                "INSERT INTO outcomes SELECT n.id, o.kind, o.number, o.turn, o.step_seconds, o.outcome "
                f"{copied} JOIN outcomes AS o ON o.cell_id = f.id WHERE n.night = ?",
                (night_name(0), night_name(night)),
            )


def _columns(store: SqlStore) -> list[str]:
    with store.reading() as connection:
        cursor = store.execute(connection, "SELECT * FROM cells LIMIT 1")
        return [column[0] for column in cursor.description]


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


def write(place: str, writer: int, cells: int, log: Path) -> None:
    """Add cells one by one; write down each of which `add` returned."""
    with open_store(place) as store, log.open("a") as told:
        for number in range(cells):
            store.add(rows_of(f"w{writer}-{number:03}", 0, 5))
            told.write(f"w{writer}-{number:03}\n")
            told.flush()


def writers(name: str, place: str, cells: int, kills: int) -> dict[str, Any]:
    """Have processes write, kill them at random, and look at what is there."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="autotune-writers-") as folder, open_store(place) as store:
        logs = [Path(folder) / f"{writer}.txt" for writer in range(WRITERS)]

        def begin(writer: int) -> subprocess.Popen[bytes]:
            command = [
                sys.executable,
                "-m",
                "benchmarks.results_store",
                "--write",
                place,
                str(writer),
                str(cells),
            ]
            return subprocess.Popen([*command, str(logs[writer])])

        running = {writer: begin(writer) for writer in range(WRITERS)}
        killed = lost = 0
        while killed < kills:
            time.sleep(rng.uniform(0.3, 1.2))
            writer = rng.randrange(WRITERS)
            if running[writer].poll() is None:
                running[writer].send_signal(signal.SIGKILL)
                running[writer].wait()
                killed += 1
            there = {row.cell for row in store.cells("nightly")}
            told = {line for log in logs if log.exists() for line in log.read_text().splitlines()}
            # What was told after the store was read is no matter.
            lost += len({one for one in told if one.startswith(f"w{writer}-")} - there - _torn(logs[writer]))
            if running[writer].poll() is not None:
                running[writer] = begin(writer)
        for process in running.values():
            process.wait()
        rows = list(store.query(Query()))
        places = [(row["cell"], row["kind"], row["number"], row["turn"]) for row in rows]
        expected = {f"w{writer}-{number:03}" for writer in range(WRITERS) for number in range(cells)}
        found = {place[0] for place in places}
        return {
            "part": "writers", "store": name, "writers": WRITERS, "killed": killed, "cells": len(found),
            "trials": len(places), "lost": lost + len(expected - found), "twice": len(places) - len(set(places)),
            "incomplete": sum(1 for cell in found if sum(place[0] == cell for place in places) != 5),
        }  # fmt: skip


def _torn(log: Path) -> set[str]:
    """Return the last line of a log that a kill has cut short."""
    text = log.read_text() if log.exists() else ""
    return set() if text.endswith("\n") or not text else {text.splitlines()[-1]}


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


@contextmanager
def postgresql(url: str | None) -> Iterator[str]:
    """Yield the URL of a server, whose databases may be made at will."""
    if url is not None:
        yield url
        return
    from tests.cluster.postgresql import server

    with server() as own:
        yield own


def database(url: str, name: str) -> str:
    """Make an empty database of a server; return its URL."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    return url.replace("/postgres?", f"/{name}?")


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
