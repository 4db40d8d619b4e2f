"""What reports say of a run in each of its states, on the executor made of arithmetic."""

from __future__ import annotations

import io
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.commands import command
from autotune.errors import InputError, ModelError
from autotune.outcome import Unsupported
from autotune.reporting.document import document, print_report
from autotune.reporting.live import Terminal
from autotune.reporting.tables import path_lines
from autotune.run.events import Asked, Inspected, Opened, ProofStarted, Started
from autotune.run.folder import find_run, new_run
from autotune.run.journal import Journal, now, read_record
from autotune.run.loop import tune
from autotune.run.record import Record
from autotune.run.sealed_lines import holder
from autotune.run.under_way import under_way
from autotune.search.context import SearchContext
from autotune.search.finals import Rematch
from autotune.search.path import Step
from autotune.search.shipped import load_space
from autotune.search.strategy import Try
from autotune.techniques.families import title as title_of
from autotune.testing.arithmetic import Arithmetic
from autotune.trial import RematchFinished
from tests.fakes.executor import FACTS, ArithmeticExecutor, crash
from tests.fakes.runs import make_spec

START = Opened(version="0", site=ArithmeticExecutor(Arithmetic(budget=1000)).describe(), time=now())
PROBE = Started(number=1, candidate=Candidate(), node="start", why="start of the graph", time=now())


def begin(journal: Journal) -> None:
    """Write what comes before the first probe."""
    for entry in (Asked.of(make_spec()), START, Inspected(facts=FACTS, baseline=0, budget=1000)):
        journal.append(entry)


def shown(paths, width=200) -> str:
    console = Console(width=width, file=io.StringIO())
    print_report(paths, console)
    return console.file.getvalue()


@pytest.fixture
def spaced(tmp_path):
    """Return a folder of runs whose name a shell would split."""
    return tmp_path / "my runs"


@pytest.fixture
def finished(spaced):
    with new_run(make_spec(), spaced) as paths:
        tune(make_spec(), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    return paths


def test_next_commands_are_whole_and_a_shell_reads_them(finished):
    lines = [line.strip() for line in shown(finished, width=60).splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("autotune ")]
    assert ["autotune", "verify", str(finished.best)] in commands
    assert ["autotune", "report", str(finished.root)] in commands
    targets = {line[line.index("--to") + 1] for line in commands if line[1] == "export"}
    assert "native" in targets
    assert all(line[2] == str(finished.root) for line in commands if line[1] == "export")


def test_a_path_that_looks_like_an_option_is_none():
    assert command("report", Path("-runs/1")) == "autotune report ./-runs/1"
    assert command("report", Path("my runs/$HOME")) == "autotune report 'my runs/$HOME'"


def test_a_run_that_is_running_says_so_and_what_is_under_way(spaced):
    with new_run(make_spec(), spaced) as paths, Journal(paths.journal, paths.lock) as journal:
        begin(journal)
        journal.append(PROBE)
        process = holder(paths.lock)
        text, data = shown(paths), document(paths)
    assert process is not None
    assert (
        f"process {process} works on this run: probe 1, {title_of(Candidate())}, micro-batch 1, for" in text
    )
    assert "resume" not in text
    assert (data["state"], data["process"]) == ("running", process)
    assert holder(paths.lock) is None
    text, data = shown(paths), document(paths)
    assert data["state"] == "interrupted"
    assert command("resume", paths.root) in text
    assert "Running" not in text


def test_what_is_under_way_is_what_the_journal_said_last():
    inspected = Inspected(facts=FACTS, baseline=0, budget=1000)
    later = datetime.fromisoformat(START.time) + timedelta(seconds=75)

    def said(*entries):
        return under_way(Record.of(entries), later)

    assert said() == "beginning"
    assert said(START) == "looking at the model, for 1m 15s"
    assert said(START, inspected) == "between probes, 0 finished"
    assert said(START, inspected, PROBE).endswith("micro-batch 1, for 1m 15s")
    assert said(START, inspected, ProofStarted(number=4, time=START.time)) == "proof of probe 4, for 1m 15s"
    assert under_way(Record.of((START,)), datetime(2000, 1, 1, tzinfo=UTC)).endswith("for 0.00 s"), (
        "the clock was set"
    )


def test_a_decided_run_is_neither(finished):
    assert document(finished)["state"] == "decided"


def test_a_run_that_was_refused_leaves_nothing_and_does_not_become_last(finished, spaced):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.inspection = Unsupported(reason="sequences of at most 512 tokens")
    with pytest.raises(InputError), new_run(make_spec(), spaced) as paths:
        tune(make_spec(), paths, executor)
    assert not paths.root.exists()
    assert find_run("last", spaced).root == finished.root


def test_a_refused_run_takes_the_folder_with_it_that_it_made(tmp_path):
    with pytest.raises(InputError), new_run(make_spec(), tmp_path / "runs"):
        raise InputError("no")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError), new_run(make_spec(), tmp_path / "mine"):
        raise InputError("no")
    assert (tmp_path / "mine").exists()


def test_what_a_run_recorded_stays_however_it_ended(spaced):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains[Candidate()] = crash()
    with pytest.raises(ModelError), new_run(make_spec(), spaced) as paths:
        tune(make_spec(), paths, executor)
    assert read_record(paths.journal).history

    def refuse(paths):
        with Journal(paths.journal, paths.lock) as journal:
            begin(journal)
            journal.append(PROBE)
        raise InputError("after a probe was started")

    with pytest.raises(InputError), new_run(make_spec(), spaced) as paths:
        refuse(paths)
    assert read_record(paths.journal).entries


def test_the_path_says_headroom_where_only_that_lacked():
    device, space = Arithmetic(budget=1000), load_space("basic")
    start = space.graph.start
    grow = next(name for name, node in space.graph.nodes.items() if node.grow is not None)
    spec = make_spec()

    def line(node, edge, evidence="measured", outcome=None, beyond=None):
        from autotune.trial import Trial

        step = Step(node=node, edge=edge, candidate=Candidate(), evidence=evidence)
        made = [(Candidate(), outcome), (Candidate(micro_batch=8), beyond)]
        history = tuple(
            Trial(number=n, candidate=c, node=node, why="", outcome=o, seconds=1.0)
            for n, (c, o) in enumerate(made, 1)
            if o is not None
        )
        (text,) = path_lines([step], space, history)
        return text.split(": ", 1)[1].split(" -> ")[0]

    assert spec.goal.headroom == 0.0
    assert line(start, "ok") == "fits"
    assert line(start, "oom", outcome=device.outcome(Candidate())) == "fits without headroom"
    assert line(start, "oom_backward") == "OOM in backward"
    assert line(start, "oom") == "OOM"
    assert line(start, "oom_backward", "predicted") == "predicted not to fit in backward"
    assert line(start, "non_finite") == "non finite"
    assert line(grow, "oom", "predicted") == "no larger one fits (predicted)"
    assert line(grow, "limit") == "the global batch has no use for more"
    assert line(grow, "limit", beyond=crash()) == "larger ones did not train"


def test_the_path_says_which_precision_took_the_place_of_an_emulated_one():
    space = load_space("default")
    steps = [
        Step(node=space.graph.start, edge="ok", candidate=Candidate(precision=precision))
        for precision in ("bf16", "fp32")
    ]
    native, replaced = path_lines(steps, space)
    assert native.startswith("BF16 baseline (micro-batch 1): fits")
    assert replaced.startswith("BF16 baseline (in fp32, micro-batch 1): fits")


def watching(spec, tmp_path):
    with new_run(make_spec(), tmp_path / "runs") as paths:
        tune(make_spec(), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    record = read_record(paths.journal)
    watch = Terminal(Console(file=io.StringIO()), spec, clock=lambda: 0.0)
    facts, budget = record.inspection.facts, record.inspection.budget
    watch.inspected(FACTS, SearchContext.of(spec, facts, budget), record.history)
    return watch, record.history


def test_time_left_counts_no_probes_that_are_none_and_no_proof_that_will_not_be(tmp_path):
    def left(spec, ahead):
        watch, _ = watching(spec, tmp_path)
        watch.trying(9, Try(Candidate(), "start", "why"), ahead)
        return watch._left()

    real = make_spec()
    simulated = real.model_copy(
        update={"device": real.device.model_copy(update={"kind": "sim", "hardware": "t4"})}
    )
    assert left(real, 1).startswith("(about 1 more probe, 1m 01s")
    assert left(real, 0) == "(the proof, 1m 00s left)"
    assert left(simulated, 2) == "(about 2 more probes, 2.00 s left)"
    assert left(simulated, 0) == ""


def test_time_left_counts_what_the_finals_have_still_to_measure(tmp_path):
    watch, history = watching(make_spec(), tmp_path)
    finalists = history[1].number, history[0].number
    watch.rematching(history[1], Rematch(history[1].number, 1, finalists))
    assert watch._left().startswith("(about 2 more probes, 1m 02s")
    outcome, seconds = history[1].outcome, history[1].seconds
    watch.rematched(
        RematchFinished(
            number=history[1].number, round=1, finalists=finalists, outcome=outcome, seconds=seconds
        )
    )
    watch.rematching(history[0], Rematch(history[0].number, 1, finalists))
    assert watch._left().startswith("(about 1 more probe, 1m 01s")


def test_a_winner_that_the_run_never_measured_is_told(finished):
    text = finished.best.read_text()
    assert "expandable_segments: true" in text
    finished.best.write_text(text.replace("expandable_segments: true", "expandable_segments: false"))
    with pytest.raises(InputError) as caught:
        shown(finished)
    assert caught.value.about == ("candidate",)
