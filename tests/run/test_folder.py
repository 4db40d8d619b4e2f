"""The folders of runs: found again by name, by path, and the newest as `last`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.errors import InputError, RunEdited
from autotune.exit_codes import ExitCode
from autotune.models.resolve import resolve
from autotune.run.events import Asked, Opened
from autotune.run.folder import create_run, find_run, load_spec
from autotune.run.loop import tune
from autotune.run.paths import RunPaths
from autotune.run.sealed_lines import OtherVersion, sealed
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


def of_another_version(folder: Path, change: Callable[[dict[str, Any]], object]) -> RunPaths:
    """Return an interrupted run of autotune 0.0.7, which wrote what it was asked for in words of its own."""
    paths = create_run(make_spec(), folder)
    asked = Asked.of(make_spec())
    change(asked.spec)
    text = json.dumps(asked.spec, sort_keys=True).encode()
    site = ArithmeticExecutor(Arithmetic(budget=1000)).describe()
    first = asked.model_copy(update={"digest": hashlib.sha256(text).hexdigest()})
    opened = Opened(version="0.0.7", site=site, time="2026-11-22T12:00:00+00:00")
    last, lines = b"", []
    for line in (first, opened):
        last = sealed(line.model_dump_json().encode(), last)
        lines.append(last)
    paths.journal.write_bytes(b"\n".join(lines) + b"\n")
    paths.spec.write_text(json.dumps(asked.spec))
    return paths


@pytest.mark.parametrize("verb", ["report", "resume", "watch"])
@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(of_another_time=1, and_another=2),
        lambda spec: spec.pop("model"),
        lambda spec: spec.pop("goal"),
    ],
    ids=["unknown keys", "a missing key", "a missing key by which the file is told from others"],
)
def test_a_run_of_another_version_is_called_that(tmp_path, verb, change):
    paths = of_another_version(tmp_path, change)
    before = {path.name: path.read_bytes() for path in paths.root.iterdir() if path.is_file()}
    with pytest.raises(OtherVersion) as error:
        load_spec(paths)
    assert error.value.version == "0.0.7"
    done = CliRunner().invoke(app, [verb, str(paths.root)])
    assert isinstance(done.exception, OtherVersion)
    assert done.exception.exit_code == ExitCode.INPUT
    said = str(done.exception)
    assert "autotune 0.0.7 wrote this run" in said
    assert "install the version that wrote it, or start a new run" in said
    assert "\n" not in said
    assert {path.name: path.read_bytes() for path in paths.root.iterdir() if path.is_file()} == before


def test_a_run_from_before_a_field_was_there_goes_on(tmp_path):
    paths = of_another_version(tmp_path, lambda spec: spec.pop("seed"))
    assert load_spec(paths) == make_spec()


def test_a_key_that_was_misspelt_in_an_edit_is_no_other_version(tmp_path):
    paths = of_another_version(tmp_path, lambda spec: spec)
    paths.spec.write_text(paths.spec.read_text().replace('"seed"', '"sead"'))
    with pytest.raises(InputError) as error:
        load_spec(paths)
    assert not isinstance(error.value, OtherVersion)
    assert "sead" in str(error.value)
