"""A small process beside the worker that samples the worker's memory.

Run as a script (`python -I -S sampler.py PID BOARD_FD`), with the standard library alone. A thread of the
worker could not do this: each of its samples needs the interpreter's lock, and a training thread that has to
hand the lock over waits until the sampler is scheduled; with as many busy threads as cores that made small
models ten times slower.

The board is a page of shared memory of five 64-bit numbers: the lap that the worker is in, then the
sampler's: the lap that its numbers belong to, and their peaks in pages (anonymous, private data, mapped
files).
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time

INTERVAL = 0.004
"""Seconds between samples: about half a percent of one core."""

LAP = struct.Struct("q")
PEAKS = struct.Struct("qqqq")
BOARD_BYTES = LAP.size + PEAKS.size


def main(pid: int, descriptor: int) -> None:
    """Sample until the process is gone."""
    statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY)
    board = mmap.mmap(descriptor, BOARD_BYTES)
    current = -1
    anonymous_peak = data_peak = shared_peak = 0
    while True:
        (lap,) = LAP.unpack_from(board, 0)
        try:
            fields = os.pread(statm, 256, 0).split()
        except ProcessLookupError:
            return
        resident, shared, data = int(fields[1]), int(fields[2]), int(fields[5])
        if resident == 0:  # it ended, and waits to be reaped
            return
        if lap != current:
            current = lap
            anonymous_peak = data_peak = shared_peak = 0
        anonymous_peak = max(anonymous_peak, resident - shared)
        data_peak = max(data_peak, data)
        shared_peak = max(shared_peak, shared)
        PEAKS.pack_into(board, LAP.size, current, anonymous_peak, data_peak, shared_peak)
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
