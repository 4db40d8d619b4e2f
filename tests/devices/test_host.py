"""What this machine's kernel keeps of files before it makes their writers wait."""

import pytest

from autotune.devices import host

AVAILABLE = 10_000


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return a writer of the kernel's settings, of a machine with AVAILABLE bytes."""
    monkeypatch.setattr(host, "_SYSCTL", tmp_path)
    monkeypatch.setattr(host, "available_memory", lambda: AVAILABLE)

    def write(**settings):
        for name, value in settings.items():
            (tmp_path / name).write_text(f"{value}\n")

    return write


def test_writers_wait_halfway_between_the_kernels_two_limits(kernel):
    kernel(dirty_bytes=0, dirty_ratio=40, dirty_background_bytes=0, dirty_background_ratio=10)
    assert host.unwritten_files() == (0.4 + 0.1) / 2 * AVAILABLE
    kernel(dirty_bytes=3000, dirty_ratio=0)
    assert host.unwritten_files() == (3000 + 1000) // 2
    kernel(dirty_background_bytes=5000)
    assert host.unwritten_files() == 3000, "a background limit above the other is none"


def test_a_kernel_that_does_not_tell_has_its_defaults(kernel):
    assert host.unwritten_files() == 0.15 * AVAILABLE
    assert kernel is not None


def test_this_machine_keeps_some_and_not_all_of_its_memory():
    assert 0 < host.unwritten_files() <= host.available_memory()
