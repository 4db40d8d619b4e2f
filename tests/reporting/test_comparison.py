"""Two runs side by side: as text, as data and as a page."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from autotune.errors import InputError
from autotune.reporting.comparison import (
    RunComparison,
    comparison_data,
    comparison_page,
    print_comparison,
    write_comparison,
)
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec
from tests.reporting.test_page import Parsed


def finished(folder, device):
    paths = create_run(make_spec(), folder)
    tune(make_spec(), paths, ArithmeticExecutor(device))
    return paths


@pytest.fixture
def pair(tmp_path):
    before = finished(tmp_path, Arithmetic(budget=1000))
    after = finished(tmp_path, Arithmetic(budget=2000, per_sample=0.005))
    return RunComparison.read(before, after)


def text_of(found, width=160):
    console = Console(width=width, file=io.StringIO())
    print_comparison(found, console)
    return console.file.getvalue()


def test_what_differs_is_said_with_by_how_much(pair):
    rows = {row.name: row for row in pair.found}
    assert rows["speed"].change.endswith("faster")
    assert rows["global step"].change.endswith("shorter")
    assert rows["micro batch"].before != rows["micro batch"].after
    assert rows["state"].change == ""
    assert {row.change for row in pair.asked} == {""}
    assert pair.caveat == ""
    text = text_of(pair)
    assert pair.before.paths.id in text
    assert rows["speed"].change in " ".join(text.split())


def test_a_run_beside_itself_differs_in_nothing(pair):
    same = RunComparison(pair.before, pair.before)
    assert not [row for row in same.found if row.change not in {"", "not distinguishable (the same)"}]
    assert same.environment == []


def test_runs_of_different_work_are_compared_with_a_caveat(pair, tmp_path):
    spec = make_spec()
    other = spec.model_copy(update={"goal": spec.goal.model_copy(update={"seq_len": 50})})
    paths = create_run(other, tmp_path)
    tune(other, paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    found = RunComparison.read(pair.before.paths, paths)
    assert "sequence length" in found.caveat
    assert found.caveat in text_of(found)


def test_the_same_stands_in_data_and_page(pair, tmp_path):
    data = json.loads(json.dumps(comparison_data(pair)))
    assert len(data["runs"]) == 2
    assert {row["name"] for row in data["found"]} >= {"speed", "peak memory", "probes"}
    parsed = Parsed(comparison_page(pair))
    for row in pair.found:
        assert row.before in parsed.text
    file = tmp_path / "both.html"
    write_comparison(pair, file)
    assert file.read_text().startswith("<!doctype html>")
    with pytest.raises(InputError) as caught:
        write_comparison(pair, tmp_path / "both.pdf")
    assert caught.value.about == ("html",)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_window(pair, width):
    assert max(map(len, text_of(pair, width).splitlines())) <= width
