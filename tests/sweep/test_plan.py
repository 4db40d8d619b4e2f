"""What a night is expected to take, and what `autotune sweep plan` shows of it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.errors import InputError
from autotune.results.reuse_key import environment_of
from autotune.sweep.cached import cached_trials
from autotune.sweep.file import SweepFile
from autotune.sweep.matrix import cells_of
from autotune.sweep.night import new_night
from autotune.sweep.plan import START, Took, plan
from autotune.sweep.start import run_night
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG
from tests.fakes.sweeps import TWO_BY_TWO, ArithmeticExecution, asked, write_sweep

FILE = SweepFile.parse(TWO_BY_TWO, "sweep.yaml")
CELLS = cells_of(FILE)


def test_what_never_ran_is_assumed_to_use_up_its_limits_and_says_so():
    planned = plan(FILE, CELLS, {})
    assert {one.basis for one in planned.cells} == {"assumed"}
    assert {one.probes for one in planned.cells} == {5}
    seconds = 5 * (START + 10) + START + 10  # and the proof
    assert {one.seconds for one in planned.cells} == {seconds}
    (hardware,) = planned.hardware
    assert hardware.hours == pytest.approx(4 * seconds / 2 / 3600)  # two at once
    assert planned.costs == {"USD": pytest.approx(2 * 4 * seconds / 3600)}


def test_a_time_budget_bounds_the_assumption():
    file = SweepFile.parse(
        {**TWO_BY_TWO, "limits": {"max_probes": 5, "time_budget": 60, "proof_time": 10}}, "f"
    )
    assert {one.seconds for one in plan(file, cells_of(file), {}).cells} == {60 + START + 10}


def test_what_ran_before_takes_what_it_took_and_others_what_cells_like_them_took():
    short, long, *others = CELLS
    took = {
        short.id: Took(cell=short.id, night="n1", probes=3, seconds=30),
        long.id: Took(cell=long.id, night="n2", probes=4, seconds=90),
        "gone": Took(cell="gone", night="n2", probes=4, seconds=9000),
    }
    planned = {one.cell.id: one for one in plan(FILE, CELLS, took).cells}
    assert (planned[short.id].basis, planned[short.id].seconds, planned[short.id].night) == (
        "measured",
        30,
        "n1",
    )
    for other in others:
        like = 30 if other.goal == "short" else 90
        assert (planned[other.id].basis, planned[other.id].seconds) == ("alike", like)


def test_what_the_store_has_of_the_very_same_is_cached_and_not_assumed_to_be_probed(tmp_path):
    sweep = asked(tmp_path, results="results", reuse_within="7d")

    def cached(place=sweep, **device):
        executor = ArithmeticExecutor(BIG)
        executor.alter_device(**device)
        return cached_trials(
            place.file, place.base, place.cells, place.specs.of, lambda _: environment_of(executor.site)
        )

    assert cached() == {cell.id: 0 for cell in CELLS}
    assert not (tmp_path / "results").exists()
    night = new_night("nightly", tmp_path / "runs")
    ended = run_night(sweep, night, execution=ArithmeticExecution()).record.ended
    found = cached()
    assert found == {cell: entry.probes for cell, entry in ended.items()}
    assert set(cached(driver="another").values()) == {0}
    again = {one.cell.id: one for one in plan(sweep.file, sweep.cells, {}, found).cells}
    for cell, count in found.items():
        assert again[cell].cached == count
        assert again[cell].seconds == (5 - min(5, count)) * (START + 10) + START + 10
    (tmp_path / "all").mkdir()
    assert cached(asked(tmp_path / "all", results=str(tmp_path / "results"))) == {}


def test_ranks_take_a_device_each():
    goals = {**TWO_BY_TWO["goals"], "short": {**TWO_BY_TWO["goals"]["short"], "gpus": 4}}
    file = SweepFile.parse({**TWO_BY_TWO, "goals": goals}, "f")
    first, second, *_ = plan(file, cells_of(file), {}).cells
    assert first.device_hours == 4 * second.device_hours
    assert first.cost == 4 * second.cost


def test_the_verb_shows_cells_and_sums_and_says_what_is_assumed(tmp_path):
    file = write_sweep(tmp_path)
    arguments = ["sweep", "plan", str(file), "--runs", str(tmp_path / "runs")]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.exception
    for part in (
        "gpt2-small-short-minimal",
        "cached",
        "assumed",
        "4 cells:",
        "USD",
        "which most runs do not",
    ):
        assert part in shown.stdout
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [one["cell"]["id"] for one in document["cells"]] == [cell.id for cell in CELLS]
    assert not (tmp_path / "runs").exists()


def test_what_is_no_sweep_file_is_told(tmp_path):
    (tmp_path / "space.yaml").write_text("axes: {}\ngraph: {}\n")
    failed = CliRunner().invoke(app, ["sweep", "plan", str(tmp_path / "space.yaml")]).exception
    assert isinstance(failed, InputError)
    assert "is not a sweep file: it is a search space" in str(failed)
