"""On the cpu device offload leaves the memory that the kernel limits, and a full disk is a typed refusal."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from autotune.worker.errors import DiskRefused, OutOfSpace
from autotune.worker.techniques import mapped_files
from autotune.worker.techniques.mapped_files import MappedFiles, host_is_short, is_mapped, parameters_in
from tests.data import limited


def test_each_rung_of_offload_fits_where_the_one_before_is_refused(tmp_path):
    # Plain needs 4 x 112 MiB, without optimizer state 2 x 112; full offload never holds a whole set of parameters.
    asked = ["full:90", "optimizer:90", "optimizer:310", "none:310", "none:600"]
    environment = {
        **os.environ,
        # Freed blocks go back to the system at once, as in a real probe.
        "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0",
        "PYTHONPATH": str(Path(limited.__file__).parents[2]),
    }  # fmt: skip
    child = subprocess.run(
        [sys.executable, limited.__file__, str(tmp_path), *asked],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {
        "full:90": True, "optimizer:90": False, "optimizer:310": True, "none:310": False, "none:600": True,
    }  # fmt: skip


@pytest.fixture
def file_limit():
    """Limit the size of files (bytes), the only refusal of disk space that needs no disk of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_space_that_is_refused_is_said_before_anything_is_written(tmp_path, file_limit):
    files = MappedFiles(tmp_path)
    file_limit(1 << 20)
    files.zeros_like(torch.empty(1 << 18))
    with pytest.raises(OutOfSpace) as caught:
        files.zeros_like(torch.empty((1 << 18) + 1))
    assert (caught.value.where, caught.value.requested) == ("disk", 1_048_580)
    assert caught.value.free is not None
    assert not list(tmp_path.iterdir())


def test_a_disk_that_something_else_has_filled_is_no_fault_of_the_candidate(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1 << 20))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    files = MappedFiles(tmp_path)
    files.zeros_like(torch.empty(1 << 17))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskRefused) as refused:
        files.zeros_like(torch.empty(1 << 17))
    assert (refused.value.needed, refused.value.free) == (1 << 19, 1 << 20)
    with pytest.raises(OutOfSpace):  # half of the disk is theirs, and they want more than the other
        files.zeros_like(torch.empty((1 << 17) + 1))
    assert not list(tmp_path.iterdir())


def test_a_model_that_outgrows_the_host_goes_on_in_files_with_the_same_weights(tmp_path):
    def build():
        torch.manual_seed(0)
        return torch.nn.ModuleList(torch.nn.Linear(8, size) for size in (4, 64, 4))

    with parameters_in(MappedFiles(tmp_path), lambda parameter: parameter.numel() > 100):
        model = build()
    assert [is_mapped(parameter) for parameter in model.parameters()] == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert all(map(torch.equal, model.parameters(), build().parameters()))


@pytest.mark.parametrize(("free", "short"), [(28, False), (26, True)])
def test_the_host_is_short_when_a_quarter_of_it_would_not_be_left(monkeypatch, free, short):
    monkeypatch.setattr(mapped_files, "available_memory", lambda: free << 20)
    monkeypatch.setattr(mapped_files, "total_memory", lambda: 100 << 20)
    assert host_is_short(torch.empty(2 << 20, dtype=torch.uint8)) is short
    assert not host_is_short(torch.empty(1000))


def test_a_mapped_tensor_keeps_shape_type_layout_and_values(tmp_path):
    files = MappedFiles(tmp_path)
    values = torch.arange(24, dtype=torch.float64).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last)
    copy = files.copy_of(values)
    assert is_mapped(copy)
    assert not is_mapped(values)
    assert torch.equal(copy, values)
    assert (copy.dtype, copy.stride()) == (values.dtype, values.stride())
    assert files.zeros_like(torch.empty(0, 3)).shape == (0, 3)
    assert files.bytes == 24 * 8
