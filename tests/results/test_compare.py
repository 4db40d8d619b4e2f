import json
from xml.etree.ElementTree import parse

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.errors import InputError
from autotune.exit_codes import ExitCode
from autotune.results.find import open_store
from autotune.results.naming import night_named
from tests.results.test_regression import NIGHTS, fill, night


@pytest.fixture
def place(tmp_path):
    with open_store(tmp_path / "results") as store:
        fill(store)
        store.add(night(8, speed=90.0))
    return tmp_path / "results"


def compared(place, *arguments):
    return CliRunner().invoke(app, ["sweep", "compare", *map(str, arguments), "--results", str(place)])


def test_a_regression_is_told_in_every_way_and_exits_with_5(place, tmp_path):
    junit, summary = tmp_path / "ci" / "night.xml", tmp_path / "ci" / "night.md"
    done = compared(place, "nightly", "--junit", junit, "--summary", summary)
    assert done.exit_code == ExitCode.REGRESSION, done.output
    assert "gpt2-small" in done.stdout
    assert parse(junit).getroot()[0].get("failures") == "1"
    assert summary.read_text() == done.stdout
    document = json.loads(compared(place, f"nightly/{NIGHTS[8]}", "--json").stdout)
    assert [change["kind"] for change in document["changes"]] == ["throughput"]


def test_two_nights_that_are_alike_exit_with_0(place):
    assert compared(place, f"nightly/{NIGHTS[3]}", f"nightly/{NIGHTS[4]}").exit_code == ExitCode.OK
    assert compared(place, f"nightly/{NIGHTS[3]}", "nightly").exit_code == ExitCode.REGRESSION


def test_thresholds_are_options(place):
    done = compared(place, "nightly", "--throughput", "20%", "--false-alarms", "0.01")
    assert done.exit_code == ExitCode.OK
    assert compared(place, "nightly", "--since", "20270101").exit_code == ExitCode.OK
    wrong = compared(place, "nightly", "--peak", "2", "--nights", "0", "--winner", "maybe").exception
    assert isinstance(wrong, InputError)
    assert len(wrong.problems) == 3


def test_what_cannot_be_told_is_said_and_changes_no_exit_code(place, tmp_path):
    (tmp_path / "file").write_text("")
    done = compared(
        place, "nightly", "--junit", tmp_path / "file" / "night.xml", "--webhook", "http://127.0.0.1:9/x"
    )
    assert done.exit_code == ExitCode.REGRESSION
    assert isinstance(compared(place, "nightly", "--webhook", "nowhere").exception, InputError)


def test_nights_go_by_several_names(place):
    with open_store(place) as store:
        for name in ("last", "nightly", f"nightly/{NIGHTS[8]}", f"/runs/sweeps/nightly/{NIGHTS[8]}/"):
            assert night_named(store, name) == ("nightly", NIGHTS[8])
        for name in ("nightly/2020", "other", "other/2020", ""):
            with pytest.raises(InputError) as caught:
                night_named(store, name)
            assert caught.value.about == ("night",)


def test_a_store_without_nights_says_so(tmp_path):
    with open_store(tmp_path) as store, pytest.raises(InputError) as caught:
        night_named(store, "last")
    assert caught.value.about == ("night",)
