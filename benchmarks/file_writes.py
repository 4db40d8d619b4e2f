"""How long copies into new mapped files take, by how many bytes there are, beside what the roofline prices them at.

    python -m benchmarks.file_writes [--times 3]

So the cpu device offloads activations: every micro-step makes its files anew, and drops them in backward. The kernel
keeps some of what was written in memory; of more it makes the writer wait for the disk. Each amount is copied in
tensors of 48 MiB, all of which are kept until the last is there, and then dropped. The largest is nearly twice what the
kernel keeps. The price is made of what a run measures at its start, and of a disk that is assumed (`DISK` in
autotune/timing/roofline.py). Nothing else should write meanwhile.

Target: every amount is priced within a factor of two, either way.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autotune.devices.host import free_disk
from autotune.specs import FileSpeed
from autotune.timing.roofline import DISK, written
from autotune.units import MIB, format_bytes, format_duration
from autotune.worker.measuring.device_speed import time_device
from autotune.worker.techniques.mapped_files import MappedFiles
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

TENSOR = 48 * MIB
TIMES = 3
FACTOR = 2.0
"""Target: by how much a price may be off."""
SHARES = (0.02, 0.15, 0.5, 0.9, 1.3, 1.8)
"""Amounts, as shares of what the kernel keeps unwritten."""


def copied(amount: int, folder: Path) -> float:
    """Return the seconds in which so many bytes, a multiple of TENSOR, are copied into new files."""
    files, tensor = MappedFiles(folder), torch.ones(TENSOR // 4)
    began = time.perf_counter()
    kept = [files.copy_of(tensor) for _ in range(amount // TENSOR)]
    seconds = time.perf_counter() - began
    kept.clear()
    return seconds


def measure(amount: int, files: FileSpeed, folder: Path, times: int) -> dict[str, Any]:
    """Copy an amount some times; return what that took beside its price."""
    seconds = [copied(amount, folder) for _ in range(times)]
    priced = written(amount, files).seconds
    return {
        "bytes": amount,
        "seconds": seconds,
        "priced": priced,
        "ratio": statistics.median(seconds) / priced,
    }


def table_of(rows: list[dict[str, Any]], files: FileSpeed) -> Table:
    """Return all amounts, with what they were priced by below."""
    kept = format_bytes(files.unwritten)
    caption = f"priced by {files.copy_speed / 1e9:.2f} GB/s, and beyond {kept} {DISK / 1e9:g} GB/s"
    table = Table("copied", "took (median)", "priced", "measured over priced", caption=caption)
    for row in rows:
        took = format_duration(statistics.median(row["seconds"]))
        table.add_row(format_bytes(row["bytes"]), took, format_duration(row["priced"]), f"{row['ratio']:.2f}")
    return table


def main() -> int:
    """Copy every amount, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=TIMES, help="copies of each amount")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
        speed = time_device("cpu", folder)
        if speed is None or speed.files is None:
            raise unmeasured("file_writes", f"no file can be mapped in {folder}")
        files = speed.files
        amounts = [TENSOR * max(1, int(share * files.unwritten) // TENSOR) for share in SHARES]
        amounts = amounts[:1] if options.smallest else amounts
        if amounts[-1] > free_disk(Path(folder)):
            raise unmeasured("file_writes", f"{format_bytes(amounts[-1])} have no room in {folder}")
        rows = [
            measure(amount, files, Path(folder), 1 if options.smallest else options.times)
            for amount in amounts
        ]
    Console().print(table_of(rows, files))
    missed = [
        f"{format_bytes(row['bytes'])}: {row['ratio']:.2f} of its price"
        for row in rows
        if not 1 / FACTOR <= row["ratio"] <= FACTOR
    ]
    print(
        record(
            "file_writes", rows, options.out, smallest=options.smallest, missed=missed, disk=DISK,
            files=files.model_dump(mode="json"),
        )
    )  # fmt: skip
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
