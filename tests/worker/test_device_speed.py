"""What a worker times of a processor."""

import subprocess
import sys

import pytest
import torch

from autotune.devices.host import unwritten_files
from autotune.timing.machine import Machine
from autotune.worker.errors import DiskRefused, OutOfSpace
from autotune.worker.measuring import device_speed
from autotune.worker.measuring.device_speed import time_device


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    return time_device("cpu", str(tmp_path_factory.mktemp("probe")))


def test_a_processor_is_timed_with_its_files(timed):
    assert timed.files.copy_speed < timed.memory, "each page of a new file has to be found first"
    assert timed.files.unwritten == pytest.approx(unwritten_files(), rel=0.2)
    assert Machine.measured(timed).files == timed.files


def test_a_processor_is_timed_drawing_random_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(device_speed, "_fastest", lambda *_, **__: 0.5)
    timed = time_device("cpu", str(tmp_path))
    assert timed.random == 2 * 2**18, "two calls a second, each of so many numbers"
    assert timed.threads == torch.get_num_threads()
    assert Machine.measured(timed).random == timed.random


def test_a_budget_that_leaves_no_room_for_it_is_no_obstacle(tmp_path):
    """Without its speed a device's rungs cannot be compared; the budget is one for what trains."""
    program = (
        "import resource, sys, torch\n"
        "from autotune.worker.measuring.device_speed import time_device\n"
        "from autotune.worker.measuring.process_memory import free_data, own_data\n"
        "room = torch.ones(2**24)\n"  # 64 MiB
        "_, hard = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (own_data() + 2**20, hard))\n"
        "before = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "assert time_device('cpu', sys.argv[1]) is not None\n"
        "assert resource.getrlimit(resource.RLIMIT_DATA) == before\n"
        "del room\n"
        "try:\n"
        "    torch.ones(2**26)\n"
        "except RuntimeError as error:\n"
        "    assert 'memory' in str(error)\n"
        "else:\n"
        "    sys.exit('the limit did not hold any more')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_nothing_is_left_in_the_folder(tmp_path):
    time_device("cpu", str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        OutOfSpace("disk", 2, 1, "no room"),
        DiskRefused("there", 2, 1, "no space"),
        PermissionError(13, "not yours"),
        RuntimeError("unable to mmap 16777216 bytes"),
    ],
)
def test_a_disk_that_takes_no_files_is_told_where_one_is_needed(tmp_path, monkeypatch, error):
    def refuse(self, tensor):
        raise error

    monkeypatch.setattr(device_speed.MappedFiles, "copy_of", refuse)
    found = time_device("cpu", str(tmp_path))
    assert found.files is None
    assert Machine.measured(found).files is None
