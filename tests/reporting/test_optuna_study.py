"""A run as a study of Optuna, read back by Optuna itself."""

from __future__ import annotations

import pytest

from autotune.errors import InputError
from autotune.outcome import Ok
from autotune.reporting.optuna_study import write_study
from autotune.reporting.reported import Reported
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    paths = create_run(make_spec(), tmp_path_factory.mktemp("runs"))
    tune(make_spec(), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    return Reported.read(paths)


def test_optuna_loads_the_study_with_every_trial(run, tmp_path):
    import optuna

    file = tmp_path / "it's a study?.db"
    write_study(run.paths, file)
    copy = tmp_path / "study.db"  # Optuna takes an address, which has no question mark in its path
    copy.write_bytes(file.read_bytes())
    study = optuna.load_study(study_name=run.paths.id, storage=f"sqlite:///{copy}")
    assert [trial.number for trial in study.trials] == list(range(len(run.record.history)))
    for trial, ours in zip(study.trials, run.record.history, strict=True):
        assert trial.params["micro_batch"] == ours.candidate.micro_batch
        assert (trial.value is not None) == isinstance(ours.outcome, Ok)
        assert trial.user_attrs["why"] == ours.why
        assert trial.datetime_complete >= trial.datetime_start
    assert study.metric_names == ["tokens per second"]
    assert study.best_trial.params["micro_batch"] == run.best.candidate.micro_batch
    assert f"(probe {run.winner.number})" in study.user_attrs["winner"]


def test_nothing_is_overwritten_and_a_folder_must_be_there(run, tmp_path):
    file = tmp_path / "study.db"
    file.write_text("mine")
    for where in (file, tmp_path / "no" / "study.db"):
        with pytest.raises(InputError) as caught:
            write_study(run.paths, where)
        assert caught.value.about == ("optuna",)
    assert file.read_text() == "mine"
    empty = create_run(make_spec(), tmp_path)
    empty.journal.write_text("")
    with pytest.raises(InputError) as caught:
        write_study(empty, tmp_path / "other.db")
    assert caught.value.about == ("run",)
