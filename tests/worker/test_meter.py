"""The CPU's meter against memory of known size."""

import json
import mmap
import os
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from autotune.candidate import Candidate
from autotune.devices.allocator import PRELOAD, preloaded
from autotune.devices.cpu import CpuDevice
from autotune.units import GIB, MIB
from autotune.worker.__main__ import reserved
from autotune.worker.measuring.memory_meter import CpuMeter
from autotune.worker.measuring.memory_sampler import INTERVAL, LAP, PEAKS

SIZE = 96 * MIB
SLACK = 4 * MIB
"""This process is not a worker: the interpreter and the test runner take and free memory meanwhile."""


@pytest.fixture
def meter():
    meter = CpuMeter()
    yield meter
    meter.close()


def block():
    return torch.ones(SIZE, dtype=torch.uint8)


def look_twice(meter):
    """Wait until the sampler has looked at the process twice: the first look may have begun before."""
    board = meter._memory._board
    for _ in range(2):
        PEAKS.pack_into(board, LAP.size, -1, 0, 0, 0)
        while PEAKS.unpack_from(board, LAP.size)[0] < 0:
            time.sleep(INTERVAL)


def test_memory_alive_is_told_to_the_byte_but_for_the_interpreters_own(meter):
    before = meter.lap().end
    held = block()
    lap = meter.lap()
    assert lap.end - before == pytest.approx(SIZE, abs=SLACK)
    del held
    assert meter.lap().end - before == pytest.approx(0, abs=SLACK)


def test_a_reserve_is_there_at_once_and_is_refused_as_memory_is(meter):
    before = meter.lap().end
    held = reserved(SIZE)
    assert meter.lap().end - before == pytest.approx(SIZE, abs=SLACK)
    del held
    assert meter.lap().end - before == pytest.approx(0, abs=SLACK)
    with pytest.raises(MemoryError):
        reserved(2**50)


def test_a_peak_that_is_over_at_once_is_seen(meter):
    before = meter.lap().end
    for _ in range(3):
        block()
        lap = meter.lap()
        assert lap.peak - before == pytest.approx(SIZE, abs=SLACK)
        assert lap.end - before == pytest.approx(0, abs=SLACK)


def test_each_lap_has_its_own_peak_and_the_process_keeps_the_largest(meter):
    before = meter.lap().end
    block()
    meter.lap()
    assert meter.lap().peak - before == pytest.approx(0, abs=SLACK)
    peaks = meter.peaks()
    assert peaks.device - meter.baseline - before == pytest.approx(SIZE, abs=SLACK)
    assert peaks.reserved > peaks.device
    assert meter.taken > meter.baseline, "stacks are private memory, touched or not"


def test_what_a_compiler_keeps_is_left_out_of_laps_and_not_of_the_process(meter):
    compilers, ours = block(), block()
    meter.disown(ours.nbytes)
    lap, peaks = meter.lap(), meter.peaks()
    assert lap.end == pytest.approx(ours.nbytes, abs=SLACK)
    assert peaks.device >= meter.baseline + compilers.nbytes + ours.nbytes - SLACK
    more = block()
    assert meter.lap().peak == pytest.approx(ours.nbytes + more.nbytes, abs=SLACK)


def test_mapped_files_are_not_counted(meter, tmp_path):
    path = tmp_path / "mapped"
    with path.open("w+b") as file:
        file.truncate(SIZE)
        before = meter.lap().end
        with mmap.mmap(file.fileno(), SIZE) as mapped:
            for offset in range(0, SIZE, mmap.PAGESIZE):
                mapped[offset] = 1
            lap = meter.lap()
    assert lap.end - before == pytest.approx(0, abs=SLACK)
    assert lap.peak - before == pytest.approx(0, abs=SLACK)


def test_memory_beside_mapped_files_that_come_and_go_is_seen_by_the_sampler(meter, tmp_path):
    path = tmp_path / "mapped"
    with path.open("w+b") as file:
        file.truncate(2 * SIZE)
        before = meter.lap().end
        held = block()
        look_twice(meter)
        del held
        with mmap.mmap(file.fileno(), 2 * SIZE) as mapped:
            for offset in range(0, 2 * SIZE, mmap.PAGESIZE):
                mapped[offset] = 1
            look_twice(meter)
        lap = meter.lap()
    # The kernel's own peak is of the file, twice as large; only the sampler saw both.
    assert lap.peak - before == pytest.approx(SIZE, abs=SLACK)


def test_what_the_allocator_keeps_is_no_part_of_the_baseline():
    # What was freed before is kept for later blocks. Counted in the baseline, it hid as many bytes of tensors, and how
    # many differed between a worker that is forked and one that starts cold.
    program = """
        import json
        import torch
        from autotune.worker.measuring.memory_meter import CpuMeter

        freed = torch.ones(3 * 2**24)
        del freed
        meter = CpuMeter()
        held = torch.ones(2**23)
        print(json.dumps(meter.lap()))
        meter.close()
    """
    environment = preloaded({**os.environ, **CpuDevice(4 * GIB).environment(Candidate())})
    assert PRELOAD in environment, "this machine has a C compiler and glibc"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, text=True, capture_output=True, check=True,
    )  # fmt: skip
    end, peak = json.loads(done.stdout)
    assert end == pytest.approx(32 * MIB, abs=SLACK)
    assert peak == pytest.approx(32 * MIB, abs=SLACK)
