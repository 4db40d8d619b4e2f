"""The folders of runs: found again by name, by path, and the newest as `last`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.run.folder import create_run, find_run
from tests.run.test_loop import make_spec


def test_the_newest_run_is_the_last_though_clocks_were_set_to_another_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        monkeypatch.setenv("TZ", "Etc/GMT-14")
        time.tzset()
        create_run(make_spec(), tmp_path)
        monkeypatch.setenv("TZ", "Etc/GMT+12")
        time.tzset()
        newest = create_run(make_spec(), tmp_path)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert find_run("last", tmp_path).root == newest.root
