"""Results in a notebook: tables whose texts are escaped, and trials as a DataFrame."""

from __future__ import annotations

import pytest

import autotune
from autotune.notebook import html_table
from autotune.outcome import Ok
from autotune.reporting.trial_rows import COLUMNS
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.estimation.test_estimate import ask
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec
from tests.reporting.test_page import HOSTILE, Parsed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    spec = make_spec()
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"name": HOSTILE})})
    paths = create_run(spec, tmp_path_factory.mktemp("runs"))
    tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    return autotune.load_run(paths.root)


def test_trials_are_a_data_frame_with_types_that_know_what_is_missing(run):
    frame = run.trials
    assert tuple(frame.columns) == COLUMNS
    assert list(frame["number"]) == [trial.number for trial in run.record.history]
    fitted = [isinstance(trial.outcome, Ok) for trial in run.record.history]
    assert list(frame["peak"].notna()) == fitted
    assert str(frame["peak"].dtype) == "Int64"
    assert (frame["why_not"] == "the winner").sum() == 1
    best = frame.loc[frame["why_not"] == "the winner"].iloc[0]
    assert best["micro_batch"] == run.best.candidate.micro_batch
    assert best["tokens_per_second"] == pytest.approx(run.best.tokens_per_second)


def test_results_show_themselves_as_tables_and_names_stay_text(run):
    for result in (run, run.best, ask()):
        text = result._repr_html_()
        parsed = Parsed(text)
        assert "table" in parsed.tags
        assert "script" not in parsed.tags
    assert "<script>" in Parsed(run._repr_html_()).text
    assert f"{run.best.tokens_per_second:,.0f}" in run.best._repr_html_()
    for trial in run.record.history:
        assert f"<td style='text-align:left'>{trial.number}</td>" in run._repr_html_()


def test_a_run_is_a_line_where_only_text_is_shown(run):
    assert repr(run).count("\n") == 0
    assert len(repr(run)) < 300
    assert f"won by probe {run.record.decided.winner}>" in repr(run)


def test_a_run_without_a_winner_says_so(tmp_path):
    paths = create_run(make_spec(), tmp_path)
    with pytest.raises(autotune.NothingFits):
        tune(
            make_spec(),
            paths,
            ArithmeticExecutor(Arithmetic(budget=1000, activations=2000, checkpointed=2000)),
        )
    run = autotune.load_run(paths.root)
    assert run.best is None
    assert "no winner" in run._repr_html_()
    assert repr(run).endswith("no winner>")
    assert len(run.trials) == len(run.record.history)


def test_every_cell_is_text():
    text = html_table(("<b>",), [("<i>", "&")], "<u>")
    assert not {"b", "i", "u"} & set(Parsed(text).tags)
