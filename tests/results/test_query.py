import csv
import io
import json

import pytest
from typer.testing import CliRunner

import autotune
from autotune.cli import app
from autotune.errors import InputError
from autotune.exit_codes import ExitCode
from autotune.results.columns import COLUMNS
from autotune.results.find import open_store
from autotune.results.row import RunRows
from autotune.results.store import Query
from tests.results.stores import DEVICE, OOM, cell, trial


@pytest.fixture
def place(tmp_path):
    with open_store(tmp_path / "results") as store:
        store.add(RunRows(cell=cell(), trials=(trial(1), trial(2, 8, OOM))))
        store.add(RunRows(cell=cell("20261102T000000Z", "llama"), trials=(trial(1, 2, passed=True),)))
    return tmp_path / "results"


def called(*arguments):
    return CliRunner().invoke(app, ["results", "query", *map(str, arguments)], env={"COLUMNS": "200"})


def test_the_columns_are_those_of_the_store(place):
    with open_store(place) as store:
        row = next(iter(store.query(Query())))
    assert set(row) == set(COLUMNS)


def test_one_line_gives_a_frame_whose_columns_have_their_types(place):
    trials = autotune.load_results(place)
    assert len(trials) == 3
    assert list(trials.columns) == list(COLUMNS)
    assert trials[trials.outcome == "ok"].groupby("cell").peak.max().to_dict() == {
        "gpt2-small": DEVICE.outcome(trial().candidate).memory.peak(),
        "llama": DEVICE.outcome(trial(1, 2).candidate).memory.peak(),
    }
    assert str(trials.peak.dtype) == "Int64"
    assert str(trials.fits.dtype) == "boolean"
    assert trials.tokens_per_second.isna().tolist() == [False, True, False]
    assert len(autotune.load_results(place, since="20261102")) == 1
    assert autotune.load_results(place, sweep="none").columns.tolist() == list(COLUMNS)


def test_no_results_are_the_users_mistake(tmp_path):
    with pytest.raises(InputError) as caught:
        autotune.load_results(tmp_path / "nothing")
    assert caught.value.about == ("results",)
    assert not (tmp_path / "nothing").exists()


def test_text_of_a_query_reads_back(place):
    rows = list(csv.DictReader(io.StringIO(called("--results", place, "--format", "csv").stdout)))
    assert [row["outcome"] for row in rows] == ["ok", "oom", "ok"]
    assert rows[1]["peak"] == ""
    assert json.loads(rows[0]["step_seconds"]) == []
    found = json.loads(called("--results", place, "--format", "json", "--cell", "llama").stdout)
    assert [(row["cell"], row["micro_batch"], row["passed"]) for row in found] == [("llama", 2, True)]
    assert json.loads(called("--results", place, "--format", "json", "--cell", "x").stdout) == []


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_files_hold_the_same_rows_as_the_frame(place, tmp_path, suffix):
    import pandas

    file = tmp_path / f"trials.{suffix}"
    done = called("--results", place, "--out", file)
    assert done.exit_code == 0, done.output
    read = {"csv": pandas.read_csv, "json": pandas.read_json, "parquet": pandas.read_parquet}[suffix]
    assert read(file)[["cell", "number", "micro_batch"]].values.tolist() == [
        ["gpt2-small", 1, 1], ["gpt2-small", 2, 8], ["llama", 1, 2],
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_table_shows_the_newest_first(place):
    shown = called("--results", place).stdout
    assert shown.index("llama") < shown.index("gpt2-small")
    assert "3 of 3 trials" in called("--results", place).output


def test_all_mistakes_of_a_query_are_told_at_once(place):
    done = called(
        "--results", place, "--kind", "prob", "--outcome", "boom", "--limit", "0", "--fromat", "csv"
    )
    assert isinstance(done.exception, InputError)
    assert len(done.exception.problems) == 4
    assert done.exception.exit_code == ExitCode.INPUT
    assert called("--results", place, "--format", "parquet").exception.about == ("out",)
    assert called("--results", place, "--out", "trials.xls").exception.about == ("out",)
