"""The preloaded allocator: exact as the kernel counts, refused where memory is, safe for each of malloc's calls."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from autotune.devices import allocator
from autotune.devices.cpu import CpuDevice
from autotune.units import GIB, MIB

MAPPED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}

PRELUDE = """
import ctypes, json, os, random, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
for name in ("malloc", "calloc", "realloc", "aligned_alloc", "memalign"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.calloc.argtypes = libc.aligned_alloc.argtypes = libc.memalign.argtypes = [ctypes.c_size_t] * 2
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = libc.malloc_usable_size.argtypes = [ctypes.c_void_p]
libc.malloc_usable_size.restype = ctypes.c_size_t
MIB = 2**20

def status(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def touched(size):
    pointer = libc.malloc(size)
    assert pointer
    ctypes.memset(pointer, 1, size)
    return pointer
"""


@pytest.fixture(scope="module")
def library():
    path = allocator.library()
    assert path is not None, "this machine has a C compiler and glibc"
    return path


@pytest.fixture
def run(library):
    """Return what runs a program under the allocator, or with every block mapped by itself; returns its JSON."""

    def ran(program: str, caching: bool = True) -> object:
        environment = {**os.environ, **MAPPED, **({"LD_PRELOAD": str(library)} if caching else {})}
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", PRELUDE + textwrap.dedent(program)], env=environment, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return ran


STEPS = """
    random.seed(0)
    sizes = [random.randrange(2**16, 8 * MIB) for _ in range(40)]
    counts = []
    for step in range(6):
        count = faults()
        held = [touched(size) for size in sizes]         # forward
        held.append(touched(20 * MIB))
        while held:                                      # backward
            libc.free(held.pop())
            if len(held) % 3 == 0:
                libc.free(touched(random.choice(sizes)))
        for _ in range(5):                               # optimizer
            libc.free(touched(50 * MIB))
        counts.append(faults() - count)
    print(json.dumps([status("VmPeak"), status("VmHWM"), counts]))
"""


def test_the_peak_is_that_of_blocks_that_are_given_back_at_once_and_pages_are_mapped_once(run):
    peak, resident, counts = run(STEPS)
    exact_peak, exact_resident, exact_counts = run(STEPS, caching=False)
    assert abs(peak - exact_peak) < MIB
    assert abs(resident - exact_resident) < MIB
    assert max(counts[1:]) < min(exact_counts) / 4


def test_what_is_kept_is_given_back_when_it_is_asked_for(run):
    grown, kept, left = run("""
        before = status("VmData")
        pointer = touched(100 * MIB)
        grown = status("VmData") - before
        libc.free(pointer)
        kept = status("VmData") - before
        libc.autotune_give_back()
        print(json.dumps([grown, kept, status("VmData") - before]))
    """)
    assert grown == kept == pytest.approx(100 * MIB, abs=MIB)
    assert left == pytest.approx(0, abs=MIB)


def test_after_that_the_peak_begins_anew(run):
    grown = run("""
        libc.free(touched(100 * MIB))
        libc.autotune_give_back()
        before = status("VmData")
        for _ in range(20):
            libc.free(touched(10 * MIB))
            libc.free(touched(15 * MIB))
        print(json.dumps(status("VmData") - before))
    """)
    assert 15 * MIB <= grown < 16 * MIB


def test_a_limit_refuses_a_request_where_it_would_refuse_it_without(run):
    program = """
        libc.free(touched(60 * MIB))
        limit = status("VmData") + {room} * MIB
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        held = touched(30 * MIB)
        print(json.dumps([bool(libc.malloc(size * MIB)) for size in (40, 29, 2)]))
    """
    # Of 60 MiB that are kept 30 are in use again; with `room` MiB more.
    assert run(program.format(room=0)) == [False, True, False]
    assert run(program.format(room=5)) == [False, True, True]


def test_small_blocks_are_given_the_room_of_what_is_kept(run):
    refused = run("""
        libc.free(touched(60 * MIB))
        limit = status("VmData") + 65536
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        print(json.dumps(sum(not libc.malloc(32768) for _ in range(40 * 32))))
    """)
    assert refused == 0


def test_every_call_of_malloc_keeps_what_is_in_a_block(run):
    """Blocks of all sizes are allocated, zeroed, grown, shrunk and freed at random; each holds what was put in it."""
    wrong = run("""
        random.seed(1)
        blocks, wrong = {}, 0

        def size():
            return int(2 ** random.uniform(4, 22))

        def fill(pointer, size):
            byte = random.randrange(1, 256)
            ctypes.memset(pointer, byte, size)
            blocks[pointer] = size, byte

        def holds(pointer, size, byte):
            return all(ctypes.string_at(pointer + at, 1)[0] == byte for at in (0, size // 2, size - 1))

        for turn in range(4000):
            action = random.randrange(6)
            if action < 3 and len(blocks) < 60:
                new = size()
                if action == 0:
                    pointer = libc.malloc(new)
                elif action == 1:
                    pointer = libc.calloc(1, new)
                    wrong += ctypes.string_at(pointer, new).count(0) != new
                else:
                    alignment = random.choice((16, 64, 256, 4096))
                    pointer = libc.memalign(alignment, new)
                    wrong += pointer % alignment != 0
                wrong += libc.malloc_usable_size(pointer) < new
                fill(pointer, new)
            elif blocks:
                pointer = random.choice(list(blocks))
                held, byte = blocks.pop(pointer)
                wrong += not holds(pointer, held, byte)
                if action == 3:
                    new = size()
                    moved = libc.realloc(pointer, new)
                    wrong += not holds(moved, min(held, new), byte)
                    fill(moved, new)
                else:
                    libc.free(pointer)
        print(json.dumps(wrong))
    """)
    assert wrong == 0


def test_a_block_that_grows_is_never_there_twice(run):
    grown = run("""
        before, pointer = status("VmData"), touched(2 * MIB)
        for size in range(4, 65, 2):
            pointer = libc.realloc(pointer, size * MIB)
        print(json.dumps(status("VmPeak") - before))
    """)
    exact = run("""
        before, pointer = status("VmData"), touched(2 * MIB)
        for size in range(4, 65, 2):
            pointer = libc.realloc(pointer, size * MIB)
        print(json.dumps(status("VmPeak") - before))
    """, caching=False)  # fmt: skip
    assert abs(grown - exact) < MIB


def test_threads_and_forks_share_it(run):
    codes = run("""
        import threading

        def work(seed):
            for turn in range(300):
                pointers = [libc.malloc((seed * 37 + turn * 11 + place) % 50 * 8192 + 65536) for place in range(8)]
                for place, pointer in enumerate(pointers):
                    ctypes.memset(pointer, place, 65536)
                for place, pointer in enumerate(pointers):
                    assert ctypes.string_at(pointer, 1) == bytes([place])
                    libc.free(pointer)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(10):
            child = os.fork()
            if not child:
                work(99)
                os._exit(7)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for thread in threads:
            thread.join()
        print(json.dumps(codes))
    """)
    assert codes == [7] * 10


def test_a_block_that_is_freed_twice_ends_the_process(library):
    program = PRELUDE + "pointer = touched(MIB); libc.free(pointer); libc.free(pointer)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], env={**os.environ, "LD_PRELOAD": str(library)}, check=False,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode < 0


def test_the_cpu_device_says_which_allocator_training_runs_with(monkeypatch, library):
    device = CpuDevice(2 * GIB)
    assert allocator.allocator_variables() == {allocator.VARIABLE: allocator.CACHING}
    assert allocator.preloaded({allocator.VARIABLE: allocator.CACHING})["LD_PRELOAD"] == str(library)
    assert "LD_PRELOAD" not in allocator.preloaded({allocator.VARIABLE: allocator.MALLOC})
    monkeypatch.setenv(allocator.VARIABLE, allocator.MALLOC)
    assert allocator.allocator_variables() == {allocator.VARIABLE: allocator.MALLOC}
    monkeypatch.delenv(allocator.VARIABLE)
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so.2")
    assert allocator.allocator_variables() == {allocator.VARIABLE: allocator.MALLOC}
    assert device.minimum() > 0


@pytest.mark.parametrize(
    "why", ["no compiler", "a compiler that fails", "a folder that cannot be written", "a space"]
)
def test_where_it_cannot_be_had_blocks_are_mapped_one_by_one(why, monkeypatch, tmp_path):
    folder = tmp_path / ("the cache" if why == "a space" else "cache")
    tools = tmp_path / "tools"
    tools.mkdir()
    if why == "a folder that cannot be written":
        folder.write_text("a file")
    elif why == "no compiler":
        monkeypatch.setenv("PATH", str(tools))
    elif why == "a compiler that fails":
        for name in ("cc", "gcc", "clang"):
            (tools / name).symlink_to("/bin/false")
        monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("AUTOTUNE_CACHE", str(folder))
    monkeypatch.setenv("CC", "")
    assert allocator.library() is None
    assert allocator.allocator_variables() == {allocator.VARIABLE: allocator.MALLOC}
    assert {"a compiler that fails": "clang", "no compiler": "CC"}.get(
        why, str(folder)
    ) in allocator.lacks_allocator()
    assert "LD_PRELOAD" not in allocator.preloaded({allocator.VARIABLE: allocator.CACHING})
    assert not [path for path in tmp_path.rglob("*allocator*") if path.is_file()]


def test_a_damaged_library_is_built_anew(monkeypatch, tmp_path, library):
    (tmp_path / library.name).write_bytes(library.read_bytes()[:5000])
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    assert allocator.library() == tmp_path / library.name
    assert (tmp_path / library.name).stat().st_size > 5000
