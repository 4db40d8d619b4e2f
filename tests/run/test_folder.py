"""The folders of runs: found again by name, by path, and the newest as `last`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.errors import RunEdited
from autotune.models.resolve import resolve
from autotune.run.folder import create_run, find_run, load_spec
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec


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


def test_a_run_does_not_go_on_with_a_model_whose_file_was_edited(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def build():\n    return 'a model'\n")
    spec = make_spec().model_copy(update={"model": resolve("own.py:build", base=tmp_path)})
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    paths = create_run(spec, tmp_path / "runs")
    file.write_text("def build():\n    return 'a larger model'\n")
    with pytest.raises(RunEdited):
        tune(load_spec(paths), paths, executor)
    assert not any(paths.probes.iterdir())
    file.write_text("def build():\n    return 'a model'\n")
    assert tune(load_spec(paths), paths, executor).model.code == spec.model.code
