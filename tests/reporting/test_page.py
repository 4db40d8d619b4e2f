"""The report as a page: what it shows, that it escapes what others wrote, and how large it becomes."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from autotune.errors import NothingFits
from autotune.outcome import Breakdown, Crash, Ok, Oom
from autotune.reporting.arithmetic import sums
from autotune.reporting.drawing import ticks
from autotune.reporting.front_figure import front_figure
from autotune.reporting.memory_bar import trial_bar
from autotune.reporting.page import page
from autotune.reporting.reported import Reported
from autotune.reporting.step_figure import read_curve, step_figure
from autotune.reporting.why_not import WINNER, reasons
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from autotune.timeline.curve import Curve
from autotune.units import MIB
from tests.fakes.executor import ArithmeticExecutor, crash
from tests.fakes.many_trials import with_trials
from tests.fakes.runs import BIG, ArithmeticTracer, make_spec

HOSTILE = "<script>alert(1)</script> \x1b[31m"


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return a run with a proven winner whose rungs were traced."""
    spec = make_spec()
    paths = create_run(spec, tmp_path_factory.mktemp("runs"))
    tune(spec, paths, ArithmeticExecutor(BIG), tracer=ArithmeticTracer(BIG))
    return Reported.read(paths)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a run without predictions, which runs out of memory on its way."""
    spec = make_spec()
    paths = create_run(spec, tmp_path_factory.mktemp("runs"))
    tune(spec, paths, ArithmeticExecutor(BIG))
    return Reported.read(paths)


class Parsed(HTMLParser):
    """The tags, ids, links and visible text of a page; fails where tags do not match."""

    VOID = frozenset({"meta", "input", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            if name == "id":
                self.ids.append(value)
            if name in {"href", "src"}:
                self.links.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_page_holds_all_that_it_shows_and_its_links_lead_somewhere(traced):
    text = page(traced)
    parsed = Parsed(text)
    assert parsed.tags.count("script") == 1
    assert not {"link", "img", "iframe", "object"} & set(parsed.tags)
    assert all(link.startswith("#") and link[1:] in parsed.ids for link in parsed.links)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert "http" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S).replace("http-equiv", "")
    assert re.search(r"script-src 'sha256-[\w+/=]+'", text), "nothing but its own script may run"


def test_a_page_shows_winner_arithmetic_proof_trials_and_what_to_do_next(traced):
    best, parsed = traced.best, Parsed(page(traced))
    for anchor in (
        "winner",
        "proof",
        "step",
        "tradeoffs",
        "sensitivity",
        "path",
        "probes",
        "rejected",
        "next",
    ):
        assert anchor in parsed.ids, anchor
    shown = " ".join(parsed.text.split())
    for one in sums(best):
        for term in (one.result, *one.terms):
            assert term.value in shown
            assert term.name in shown
    for check in best.proof.checks:
        assert check.name in shown
    for trial in traced.record.history:
        assert f"probe-{trial.number}" in parsed.ids
        assert trial.why in shown
    assert shown.count("predicted") > 3
    assert f"autotune verify {traced.paths.best}" in shown
    assert best.environment["torch"] in shown


def test_sums_are_what_the_record_says(traced):
    batch, best = traced.best.accumulation, traced.best
    found = {one.title: one for one in sums(best)}
    product = 1
    for term in found["Global batch"].terms:
        product *= int(term.value.replace(",", ""))
    assert product == batch.effective
    assert found["Speed"].result.value.startswith(f"{best.tokens_per_second:,.0f}")


def test_every_trial_that_lost_says_why(measured):
    why = reasons(measured)
    assert sorted(why) == [trial.number for trial in measured.record.history]
    assert list(why.values()).count(WINNER) == 1
    assert why[measured.winner.number] == WINNER
    ooms = [trial.number for trial in measured.record.history if isinstance(trial.outcome, Oom)]
    assert ooms
    assert all("were asked for with" in why[number] for number in ooms)
    assert all(why.values())


def test_a_bar_has_the_parts_of_the_peak_and_where_it_was_predicted(traced, measured):
    trial = next(trial for trial in traced.record.history if isinstance(trial.outcome, Ok))
    parts = Breakdown(
        parameters=BIG.budget // 8, gradients=BIG.budget // 8, optimizer_state=0, activations=0, other=0
    )
    memory = trial.outcome.memory.model_copy(update={"breakdown": parts})
    outcome = trial.outcome.model_copy(update={"memory": memory})
    drawn = trial_bar(trial.model_copy(update={"outcome": outcome}), traced.context)
    assert 'class="s-parameters"' in drawn
    assert 'class="s-gradients"' in drawn
    assert 'class="s-activations"' not in drawn
    assert "parameters 1.95 GiB, gradients 1.95 GiB, libraries" in drawn
    assert "whisker" in drawn
    plain = trial.model_copy(update={"prediction": None})
    assert "whisker" not in trial_bar(plain, traced.context)
    refused = next(trial for trial in measured.record.history if isinstance(trial.outcome, Oom))
    assert "s-refused" in trial_bar(refused, measured.context)
    crashed = plain.model_copy(update={"outcome": crash()})
    assert trial_bar(crashed, measured.context) == ""


def test_a_run_writes_down_a_step_of_its_winner_and_a_page_says_where_it_did_not(traced, measured):
    curve = read_curve(traced.paths)
    assert curve is not None
    assert max(curve.totals()) > 0
    assert read_curve(measured.paths) is None
    assert "wrote down no trace" in page(measured)
    assert "wrote down no trace" not in page(traced)
    assert "plot curve" in page(traced)


def test_a_step_that_cannot_be_read_is_none(traced, tmp_path):
    paths = dataclasses.replace(traced.paths, root=tmp_path)
    assert read_curve(paths) is None
    for text in ("{", "{}", '{"levels": {"parameter": [1]}, "phases": []}', '{"levels": {}, "phases": []}'):
        paths.step_memory.write_text(text)
        assert read_curve(paths) is None, text


def test_the_curve_draws_what_is_in_it():
    curve = Curve(
        levels={"parameter": (1 * MIB,) * 4, "activation": (0, 2 * MIB, 3 * MIB, 0)},
        phases=((0, "forward"), (2, "backward")),
    )
    drawn = step_figure(curve, ())
    assert "s-parameters" in drawn
    assert "s-activations" in drawn
    assert "s-gradients" not in drawn
    assert "4 MiB at the most" in drawn
    assert "measured-peak" not in drawn


@pytest.mark.parametrize("most", [0.0, 0.003, 0.9, 1.0, 7.3, 80.0, 31_234.0])
def test_ticks_are_round_and_few_and_reach_almost_to_the_top(most):
    found = ticks(most)
    assert found[0] == 0
    assert len(found) <= 7
    assert not most or most * 0.7 <= found[-1] <= most * 1.001


def test_what_others_wrote_stays_text(traced):
    odd = traced.spec.model.model_copy(update={"name": HOSTILE})
    text = page(dataclasses.replace(traced, spec=traced.spec.model_copy(update={"model": odd})))
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text
    assert Parsed(text).tags.count("script") == 1


def test_a_run_without_a_winner_has_a_page_too(tmp_path):
    small = Arithmetic(budget=1000, activations=2000, checkpointed=2000)
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    with pytest.raises(NothingFits):
        tune(spec, paths, ArithmeticExecutor(small))
    text = page(Reported.read(paths))
    assert "No winner" in text
    assert "How each rung ended" in text
    assert "✕ no winner" in text


def test_a_run_that_only_began_has_a_page_too(tmp_path):
    from autotune.run.events import Asked
    from autotune.run.journal import Journal

    paths = create_run(make_spec(), tmp_path)
    with Journal(paths.journal, paths.lock) as journal:
        journal.append(Asked.of(make_spec()))
    text = page(Reported.read(paths))
    assert "not finished" in text
    assert "autotune resume" in text


def test_a_thousand_trials_are_below_six_megabytes(traced):
    text = page(with_trials(traced, BIG, 1000))
    assert text.count('<tr id="probe-') >= 1000
    assert len(text.encode()) < 6e6


def test_the_picture_says_what_is_measured_and_what_is_not(traced):
    found = traced.tradeoffs
    guessed = dataclasses.replace(found.points[0], evidence="predicted", number=None)
    drawn = front_figure(dataclasses.replace(found, points=(*found.points, guessed)), traced.context)
    assert "mark-measured" in drawn
    assert "mark-predicted" in drawn
    assert "mark-winner" in drawn
    assert "predicted, not measured" in drawn


def test_an_outcome_of_another_kind_is_shown(traced):
    odd = Crash(reason="exception", phase="forward", message="<b>no</b>")
    trial = traced.record.history[0].model_copy(update={"outcome": odd})
    from autotune.reporting.probe_rows import probe_table

    class Record:
        history = (trial,)
        rematches = ()
        proofs = ()
        entries = ()

    text = probe_table(dataclasses.replace(traced, record=Record(), best=None))
    assert "&lt;b&gt;no&lt;/b&gt;" in text
    assert "crashed (exception)" in text
