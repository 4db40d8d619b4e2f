"""`autotune runs` and `autotune watch`: what they tell of runs in each state."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from autotune import __version__
from autotune.candidate import Candidate
from autotune.cli import app
from autotune.console import PlainConsole
from autotune.errors import NothingFits
from autotune.reporting.run_list import Listed, run_list, run_table
from autotune.reporting.time_left import time_left
from autotune.reporting.watching import Watching, ahead_of
from autotune.run.events import Asked, Inspected, Opened, ProofStarted, Searched, Started
from autotune.run.folder import create_run
from autotune.run.journal import Journal, now, read_record
from autotune.run.loop import tune
from autotune.run.record import Record
from autotune.run.sealed_lines import sealed
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import FACTS, ArithmeticExecutor
from tests.fakes.runs import make_spec

NEVER = Arithmetic(budget=1000, activations=2000, checkpointed=2000)
"""On which nothing fits."""


def _journal(paths, *lines):
    """Write a journal of these lines, each sealed behind the one before it."""
    last = b""
    paths.journal.write_bytes(b"".join((last := sealed(line.encode(), last)) + b"\n" for line in lines))


@pytest.fixture
def runs(tmp_path):
    """Return a folder of runs, one in each state, and the folders by state."""
    parent = tmp_path / "runs"
    made = {}

    def make(state):
        made[state] = create_run(make_spec(), parent)
        return made[state]

    tune(make_spec(), make("proven"), ArithmeticExecutor(Arithmetic(budget=1000)))
    with pytest.raises(NothingFits):
        tune(
            make_spec(),
            make("no winner"),
            ArithmeticExecutor(Arithmetic(budget=1000, activations=2000, checkpointed=2000)),
        )
    paths = make("interrupted")
    with Journal(paths.journal, paths.lock) as journal:
        journal.append(Asked.of(make_spec()))
    make("damaged").journal.write_text("{}\n{}\n")
    _journal(
        make("other version"), Asked.of(make_spec()).model_dump_json(), '{"type":"opened","version":"0.0.7"}'
    )
    return parent, made


def test_each_state_is_listed_the_newest_first(runs):
    parent, made = runs
    found, earlier = run_list(parent)
    assert earlier == 0
    assert [run.name for run in found] == sorted((paths.id for paths in made.values()), reverse=True)
    states = {run.name: run.state for run in found}
    assert states == {paths.id: state for state, paths in made.items()}
    proven = Listed.read(made["proven"])
    assert proven.winner
    assert proven.tokens_per_second > 0
    assert proven.peak > 0
    assert proven.started is not None
    assert Listed.read(made["no winner"]).why
    assert Listed.read(made["damaged"]).why
    assert Listed.read(made["other version"]).why.startswith("autotune 0.0.7 wrote it")
    with Journal(made["interrupted"].journal, made["interrupted"].lock):
        assert Listed.read(made["interrupted"]).state == "running"


@pytest.mark.parametrize(
    ("version", "who"),
    [(__version__, "another version of autotune"), ("1.0\x1b[2J", "another version of autotune")],
)
def test_a_spec_that_another_version_wrote_is_told_apart_from_damage(tmp_path, version, who):
    paths = create_run(make_spec(), tmp_path)
    asked = Asked.of(make_spec())
    of_theirs = asked.model_copy(update={"spec": {**asked.spec, "of_another_time": 1}})
    site = ArithmeticExecutor(Arithmetic(budget=1000)).describe()
    opened = Opened(version=version, site=site, time="2026-11-22T12:00:00+00:00")
    _journal(paths, of_theirs.model_dump_json(), opened.model_dump_json())
    found = Listed.read(paths)
    assert (found.state, found.why) == ("other version", f"{who} wrote it, and {__version__} cannot read it")


def test_the_list_says_how_many_it_leaves_out(runs):
    parent, _ = runs
    done = CliRunner().invoke(app, ["runs", "--runs", str(parent), "--last", "1"])
    assert done.exit_code == 0
    assert "and 4 earlier: --last 5" in done.stdout
    data = json.loads(CliRunner().invoke(app, ["runs", "--runs", str(parent), "--json"]).stdout)
    assert {run["state"] for run in data} == {
        "proven",
        "no winner",
        "interrupted",
        "damaged",
        "other version",
    }


@pytest.mark.parametrize("width", [80, 120, 200])
def test_runs_are_readable_in_every_window(runs, width):
    parent, _ = runs
    found, _ = run_list(parent)
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(run_table(found))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for state in ("proven", "no winner", "interrupted", "damaged", "other version"):
        assert state in text
    shown = "model" in lines[0]
    assert shown if width == 200 else shown or "also shows" in lines[-1]


def test_watching_a_decided_run_ends_at_once_and_one_that_stopped_says_how_to_go_on(runs):
    _, made = runs
    console = Console(file=io.StringIO(), width=160)
    watching = Watching(made["proven"], console)
    assert watching.follow(lambda _: pytest.fail("nothing to wait for")) == "decided"
    lines = console.file.getvalue().splitlines()
    assert len(lines) == len(read_record(made["proven"].journal).history)
    assert all(line.startswith("probe ") for line in lines)
    assert Watching(made["interrupted"], console).follow() == "interrupted"
    done = CliRunner().invoke(app, ["watch", str(made["interrupted"].root)])
    assert done.exit_code == 1
    assert "autotune resume" in done.output
    assert CliRunner().invoke(app, ["watch", str(made["proven"].root)]).exit_code == 0


def test_a_run_is_followed_as_its_journal_grows(tmp_path):
    paths = create_run(make_spec(), tmp_path)
    site = ArithmeticExecutor(Arithmetic(budget=1000)).describe()
    lines = [
        Asked.of(make_spec()), Opened(version="0", site=site, time=now()),
        Inspected(facts=FACTS, baseline=0, budget=1000),
        Started(number=1, candidate=Candidate(), node="start", why="start of the graph", time=now(), ahead=3),
    ]  # fmt: skip
    console = PlainConsole(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    watching, seen = Watching(paths, console), []
    with Journal(paths.journal, paths.lock) as journal:

        def wait(_: float) -> None:
            console.print(watching.view())
            if lines:
                journal.append(lines.pop(0))
            else:
                journal.close()

        journal.append(lines.pop(0))
        assert watching.follow(wait) == "interrupted"
        seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    assert "looking at the model" in seen
    assert "probe 1, bf16, micro-batch 1, for" in seen


def test_what_is_still_ahead_is_what_the_last_start_said():
    started = Started(number=1, candidate=Candidate(), node="start", why="", time=now(), ahead=3)
    assert ahead_of(Record.of(())) == (0, False)
    assert ahead_of(Record.of((started,))) == (3, False)
    over = Searched(why="", reason="exhausted", path=())
    assert ahead_of(Record.of((started, over))) == (0, False)
    assert ahead_of(Record.of((started, over, ProofStarted(number=1, time=now())))) == (0, True)


def test_time_left_takes_off_what_is_over(tmp_path):
    paths = create_run(make_spec(), tmp_path)
    tune(make_spec(), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    trials, spec = read_record(paths.journal).history, make_spec()
    assert time_left(spec, (), 5) == ""
    assert time_left(spec, trials, 2) == "(about 2 more probes, 1m 02s left)"
    assert time_left(spec, trials, 2, elapsed=0.9) == "(about 2 more probes, 1m 01s left)"
    assert time_left(spec, trials, 2, elapsed=50) == "(about 2 more probes, 1m 01s left)"
    assert time_left(spec, trials, 0, elapsed=20, proving=True) == "(the proof, 40.0 s left)"
