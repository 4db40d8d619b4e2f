"""Faults against whole runs: every one must end in the same proven winner, with nothing left and nothing done twice.

    python -m benchmarks.faults [--only lines phases] [--named SIGTERM] [--real] [--soak] [--jobs 2]

Each trial disturbs a tuner (a real process, with real signals) at one moment, resumes the run until it ends, and
compares it with an undisturbed one: winner, trials and their verdicts, files; no process, temporary file or lock
left; nothing that was finished started again. Most trials answer probes by arithmetic, in the tuner itself or in
processes under real supervisors, so that everything must be equal; `--real` adds 15 with probes that train, whose
speeds are noise and whose winner may differ by the stated margin. Faults that need a file system of their own (a full
one, a read-only one) are left out, and said to be, where the user may not mount one. `--soak` looks for growth
instead: 200 runs one after the other, then 200 by 8 tuners at a time. Target: no miss; exits with 1 on any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fault_case import Case  # noqa: E402
from benchmarks.fault_cases import arithmetic_cases, real_cases  # noqa: E402
from benchmarks.fault_soak import soak  # noqa: E402
from benchmarks.fault_trial import MARGIN, Expected, NotAllowed, undisturbed  # noqa: E402
from benchmarks.recording import RESULTS, record  # noqa: E402

Row = dict[str, Any]
_cases: list[Case] = []
_expected: dict[tuple[str, bool], Expected] = {}


def main() -> None:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="autotune-faults-"))
    try:
        rows = soak(folder, options.runs, options.tuners) if options.soak else faults(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    misses = [row for row in rows if row["misses"]]
    name = "soak" if options.soak else "faults-real" if options.real_only else "faults"
    if options.record:
        path = record(name, rows, options.out, trials=len(rows), missed=len(misses), margin=MARGIN)
        print(f"written to {path}")
    print(f"{len(rows)} trials, {len(misses)} missed")
    sys.exit(1 if misses else 0)


def faults(folder: Path, options: argparse.Namespace) -> list[Row]:
    """Run every chosen fault, print the table, and return a row for each."""
    _expected["arithmetic", True] = undisturbed("arithmetic", folder / "foreseen")
    _expected["processes", False] = undisturbed("processes", folder / "processes", predict=False)
    chosen = arithmetic_cases(_expected["arithmetic", True])
    if options.real or options.real_only:
        _expected["real", False] = undisturbed("real", folder / "real", predict=False)
        chosen = real_cases(_expected["real", False]) + ([] if options.real_only else chosen)
    _cases.extend(case for case in chosen if _is_chosen(case, options))
    rows: list[Row] = []
    work = [(number, str(folder / f"{number:04d}")) for number in range(len(_cases))]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for row in pool.imap_unordered(_run, work):
            rows.append(row)
            for miss in row["misses"]:
                print(f"MISS {row['group']}: {row['fault']} ({row['executor']}): {miss}", flush=True)
    rows.sort(key=lambda row: (row["executor"], row["number"]))
    _print_table(rows)
    return rows


def _is_chosen(case: Case, options: argparse.Namespace) -> bool:
    return (not options.only or case.group in options.only) and all(
        word in case.name for word in options.named
    )


def _run(work: tuple[int, str]) -> Row:
    number, folder = work
    case, began = _cases[number], time.monotonic()
    row: Row = {
        "number": number,
        "group": case.group,
        "fault": case.name,
        "executor": case.kind,
        "left_out": "",
        "misses": [],
    }
    os.makedirs(folder)
    try:
        row["misses"] = case.run(Path(folder), _expected[case.kind, case.predict])
    except NotAllowed as error:
        row["left_out"] = f"this user may not mount a file system: {error}"
    except Exception as error:  # noqa: BLE001 - one trial that breaks is a miss, not the end of the bench
        row["misses"] = [f"the trial broke: {type(error).__name__}: {error}"]
    shutil.rmtree(folder, ignore_errors=True)
    return {**row, "seconds": round(time.monotonic() - began, 2)}


def _print_table(rows: Sequence[Row]) -> None:
    print(f"{'executor':12}{'faults':12}{'trials':>8}{'held':>8}{'missed':>8}{'left out':>10}")
    groups = Counter((row["executor"], row["group"]) for row in rows)
    for (executor, group), count in groups.items():
        own = [row for row in rows if (row["executor"], row["group"]) == (executor, group)]
        missed, left_out = sum(bool(row["misses"]) for row in own), sum(bool(row["left_out"]) for row in own)
        held = count - missed - left_out
        print(f"{executor:12}{group:12}{count:8}{held:8}{missed:8}{left_out:10}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=["lines", "phases", "supervisors", "disk", "folders", "others"],
    )
    parser.add_argument("--named", nargs="+", default=[], help="words that a fault's name holds")
    parser.add_argument("--real", action="store_true", help="15 faults with probes that train, too")
    parser.add_argument("--real-only", action="store_true", help="these alone")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--soak", action="store_true", help="look for growth instead")
    parser.add_argument("--runs", type=int, default=200, help="runs of each half of the soak")
    parser.add_argument("--tuners", type=int, default=8, help="tuners at a time in the soak's second half")
    parser.add_argument("--record", action="store_true", help="write the record")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    return parser.parse_args()


if __name__ == "__main__":
    main()
