"""Scratch folders: where they are made, and who takes away what a killed owner left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.executors.scratch import PREFIX, NoRoom, clear_leftovers, scratch_folder

OWNER = """
import sys, time
from pathlib import Path
from autotune.executors.scratch import scratch_folder
with scratch_folder([Path(sys.argv[1])]) as folder:
    (folder / "tensor").write_text("many GiB")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path):
    """Return a process that holds a scratch folder in `tmp_path`, and the folder."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        yield process, Path(process.stdout.readline().decode().strip())
        process.kill()


def test_a_folder_is_gone_at_the_end_however_that_comes(tmp_path):
    with scratch_folder([tmp_path]) as folder:
        (folder / "deep").mkdir()
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), scratch_folder([tmp_path]):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_what_a_killed_owner_left_is_taken_away_by_the_next_start(tmp_path, owner):
    process, left = owner
    clear_leftovers(tmp_path)
    with scratch_folder([tmp_path]):
        assert (left / "tensor").exists(), "its owner lives"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.exists()
    with scratch_folder([tmp_path]) as folder:
        assert not left.exists()
        assert [path for path in tmp_path.iterdir() if path.name.startswith(PREFIX)] == [folder]


def test_a_folder_whose_owner_was_killed_before_it_had_the_lock_goes_too(tmp_path):
    (tmp_path / f"{PREFIX}abc").mkdir()
    (tmp_path / "autotune-of-somebody").mkdir()
    clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["autotune-of-somebody"]


def test_a_link_of_that_name_is_nobodys_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work").write_text("dear")
    (tmp_path / f"{PREFIX}abc").symlink_to(tmp_path / "mine")
    clear_leftovers(tmp_path)
    assert (tmp_path / "mine" / "work").exists()


def test_a_place_that_takes_nothing_or_too_little_is_passed_over(tmp_path):
    with scratch_folder([Path("/proc"), tmp_path / "missing", tmp_path]) as folder:
        assert folder.parent == tmp_path
    with pytest.raises(NoRoom) as raised, scratch_folder([Path("/proc"), tmp_path], 2**60):
        pass
    said = str(raised.value)
    assert f"{tmp_path} has" in said
    assert "1073741824.00 GiB are needed" in said
    assert "Set TMPDIR" in said
    assert raised.value.exit_code == 1
