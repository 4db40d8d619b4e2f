"""Memory against speed and the steps around a winner, as a whole run reports them: text, data and page."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from autotune.errors import InputError
from autotune.probe.protocol import ProbeRequest
from autotune.reporting.document import document, print_report
from autotune.reporting.page import page, write_page
from autotune.reporting.reported import Reported
from autotune.run.events import Decided, Searched, Surveyed
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.predictions import Predictions
from autotune.run.survey import survey
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, ArithmeticTracer, make_spec


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """Return a run whose rungs were traced, so that what it did not probe is priced."""
    spec = make_spec()
    paths = create_run(spec, tmp_path_factory.mktemp("runs"))
    tune(spec, paths, ArithmeticExecutor(BIG), tracer=ArithmeticTracer(BIG))
    return paths


@pytest.fixture(scope="module")
def unpredicted(tmp_path_factory):
    spec = make_spec()
    paths = create_run(spec, tmp_path_factory.mktemp("runs"))
    tune(spec, paths, ArithmeticExecutor(BIG))
    return paths


def text_of(paths, width=200):
    console = Console(width=width, file=io.StringIO())
    print_report(paths, console)
    return console.file.getvalue()


def test_what_is_priced_around_the_winner_is_journaled_before_the_decision(predicted):
    record = read_record(predicted.journal)
    kinds = [type(entry) for entry in record.entries]
    assert kinds.index(Searched) < kinds.index(Surveyed) < kinds.index(Decided)
    assert record.surveyed.winner == record.decided.winner
    tried = {trial.candidate for trial in record.history}
    assert record.surveyed.priced
    assert not tried & {entry.candidate for entry in record.surveyed.priced}
    assert len({entry.candidate for entry in record.surveyed.priced}) == len(record.surveyed.priced)


def test_predictions_make_no_prediction_surer(predicted):
    """A trace's own word, as often as it is repeated, narrows no interval; measured peaks do."""
    record, spec = read_record(predicted.journal), make_spec()
    run = Reported.read(predicted)
    site = ArithmeticExecutor(BIG).describe()
    rungs = [entry.candidate for entry in record.traced]
    predictions = Predictions(
        ArithmeticTracer(BIG), site.device, record.inspection, run.context, predicted.tracing
    )
    for rung in rungs:
        predictions.trace(
            ProbeRequest(
                kind="trace", model=spec.model, candidate=rung, seq_len=100, accumulation_steps=2, device="cpu",
                budget=BIG.budget, seed=0, sample_seconds=1.0, sample_steps=1, folder="",
            ),
            timeout=1.0,
        )  # fmt: skip
    winner = run.best.candidate
    sure, unsure = (
        survey(predictions, winner, rungs, record.history, run.context, measured=measured)
        for measured in (True, False)
    )
    widths = [{entry.candidate: entry.high - entry.low for entry in found} for found in (sure, unsure)]
    common = widths[0].keys() & widths[1].keys()
    assert common
    assert all(widths[0][candidate] < widths[1][candidate] for candidate in common)


def test_every_point_says_where_it_comes_from(predicted):
    found = json.loads(json.dumps(document(predicted)))["tradeoffs"]
    evidence = {point["evidence"] for point in found["points"]}
    assert evidence == {"measured", "predicted"}
    assert all((point["trial"] is not None) == (point["evidence"] == "measured") for point in found["points"])
    front = found["pareto_front"]
    assert [point["peak"] for point in front] == sorted(point["peak"] for point in front)
    speeds = [point["tokens_per_second"] for point in front]
    assert speeds == sorted(speeds)
    assert front[-1]["winner"]
    sizes = [change for change in found["sensitivity"] if change["axis"] == "micro_batch"]
    assert {change["known"] for change in sizes} <= {"measured", "predicted"}
    assert sum(point["winner"] for point in found["points"]) == 1


def test_a_run_without_a_memory_model_says_what_it_does_not_know(unpredicted):
    assert read_record(unpredicted.journal).surveyed is None
    changes = document(unpredicted)["tradeoffs"]["sensitivity"]
    unknown = [change for change in changes if change["known"] == "unknown"]
    assert unknown
    assert {change["why"] for change in unknown} == {"neither probed nor priced"}
    text = text_of(unpredicted)
    assert "neither probed nor priced" in text


def test_the_report_has_both_as_tables_and_the_end_of_a_run_has_not(predicted):
    text = text_of(predicted)
    front = text.partition("Memory against speed")[2].partition("One step from the winner")[0]
    assert "winner" in front
    assert "measured" in front
    steps = text.partition("One step from the winner")[2].partition("Rejected")[0]
    assert re.search(r"micro_batch +\d+ -> \d+", steps)
    assert "predicted" in steps
    assert max(map(len, text_of(predicted, width=80).splitlines())) <= 200


def test_in_a_narrow_window_each_evidence_is_a_whole_word(predicted):
    text = text_of(predicted, width=80)
    steps = text.partition("One step from the winner")[2].partition("Rejected")[0]
    words = {line.split()[-1] for line in steps.splitlines() if "->" in line}
    assert words <= {"measured", "predicted", "unknown", "refused"}
    assert max(len(line) for line in steps.splitlines()) <= 80


def test_the_page_has_the_same_with_a_picture(predicted, tmp_path):
    text = page(Reported.read(predicted))
    for heading in (
        "Winner", "Memory against speed", "One step from the winner", "Path through the graph", "Probes", "Rejected",
        "Passed over by prediction",
    ):  # fmt: skip
        assert f">{heading}</h2>" in text, heading
    front = text.partition('id="tradeoffs"')[2].partition('id="sensitivity"')[0]
    assert front.count('<tr class="winner">') == 1
    assert "mark-winner" in front
    file = tmp_path / "report.html"
    write_page(predicted, file)
    assert file.read_text().startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_refused_by_the_flag(predicted, tmp_path):
    for name, why in (("report.pdf", "must end in .html"), ("missing/report.html", "there is no folder")):
        with pytest.raises(InputError, match=why) as caught:
            write_page(predicted, tmp_path / name)
        assert caught.value.about == ("html",)
