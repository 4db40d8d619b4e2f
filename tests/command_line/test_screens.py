"""What tables and texts look like in windows of 80, 120 and 200 columns, and in a pipe."""

from __future__ import annotations

import io
import re

import pytest
from rich.text import Text
from typer.testing import CliRunner

from autotune.candidate import Candidate
from autotune.cli import app
from autotune.console import PlainConsole, Unpadded
from autotune.estimation.tables import print_estimates
from autotune.models.catalog import list_presets
from autotune.outcome import Communication, Ok
from autotune.prediction import Prediction
from autotune.reporting.columns import Column, FittingTable
from autotune.reporting.tables import trial_line, trial_table
from autotune.search.context import SearchContext
from autotune.search.shipped import load_space
from autotune.specs import Goal
from autotune.techniques.families import title as title_of
from autotune.testing.arithmetic import Arithmetic
from autotune.trial import Trial
from autotune.units import GIB, format_bytes
from tests.estimation.test_estimate import ask

SPACE = load_space("basic")
LONGEST = Candidate(precision="bf16", checkpointing="full", offload="optimizer", sharding="fsdp2")
WIDTHS = pytest.mark.parametrize("width", [80, 120, 200])


def screen(width, *renderables) -> list[str]:
    """Return the lines of a window of that width."""
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(*renderables)
    return console.file.getvalue().splitlines()


def trials(ranks=1):
    context = SearchContext(
        SPACE, LONGEST, Goal(target="4M", seq_len=1024, gpus=ranks), 1024, budget=80 * GIB
    )
    device = Arithmetic(80 * GIB, GIB, 8 * GIB, GIB, checkpointed=GIB // 20)
    history = []
    for number, size in enumerate((1, 2, 1000, 3907), 1):
        outcome = device.outcome(LONGEST.at(size))
        if ranks > 1 and isinstance(outcome, Ok):
            heard = Communication(micro_step=0.1, last_micro_step=0.2, optimizer_step=0.1)
            outcome = outcome.model_copy(update={"communication": heard})
        expected = Prediction.model_construct(peak=40 * GIB, low=39 * GIB, high=41 * GIB, timing=None)
        history.append(
            Trial.model_construct(
                number=number, candidate=LONGEST.at(size), node=SPACE.graph.start, outcome=outcome, seconds=9.0,
                why=f"micro-batch {size} fits: does a larger one pay?", prediction=expected if ranks > 1 else None,
            )
        )  # fmt: skip
    return tuple(history), context


@WIDTHS
@pytest.mark.parametrize("ranks", [1, 8])
def test_no_rung_and_no_number_of_a_trial_is_cut(width, ranks):
    history, context = trials(ranks)
    lines = screen(width, trial_table(history, context))
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    words = set(re.findall(r"[\w+]+", title_of(LONGEST)))
    assert words <= set(re.findall(r"[\w+]+", text)), "the rung, over several lines if need be"
    for trial in history:
        assert re.search(rf"^ *{trial.number} .* {trial.candidate.micro_batch:,} ", text, re.MULTILINE)
        if isinstance(trial.outcome, Ok):
            assert format_bytes(trial.outcome.memory.peak()) in text
    assert "…" not in text
    assert "tried because" in text, "as a column, or named as one that has no room"
    assert width < 200 or "also shows" not in text


def test_columns_leave_in_their_turn_and_are_named():
    columns = [
        Column("first", ["x" * 10]),
        Column("second", ["y" * 10], leaves=1),
        Column("third", ["z" * 10], leaves=2),
        Column("long", ["some words that can be broken"], least=12),
    ]
    table = FittingTable(columns)
    for width, left_out in ((80, []), (44, ["third"]), (30, ["third", "second"]), (10, ["third", "second"])):
        names = [column.title for column in table.fitting(width)]
        assert [c.title for c in columns if c.title not in names] == sorted(left_out)
    assert screen(44, table)[-1] == "a wider window also shows: third"
    assert not [line for line in screen(80, table) if "also shows" in line]


@WIDTHS
def test_estimates_keep_rung_peak_micro_batch_and_speed(width):
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    answer = ask(gpus=8)
    print_estimates(answer, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for rung in answer.priced:
        assert format_bytes(rung.estimate.device_peak_bytes) in text
        assert re.search(rf" {rung.estimate.largest_micro_batch or 'none fits'}\b", text)
    assert "…" not in text
    assert ("optimizer state" in lines[-3]) == (width == 80), lines[-3]


@WIDTHS
def test_models_keep_their_names_and_sizes(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = CliRunner().invoke(app, ["models"]).stdout.splitlines()
    assert max(map(len, lines)) <= width
    for preset in list_presets():
        assert any(preset.name in line and f"{preset.parameters:,}" in line for line in lines)


@WIDTHS
@pytest.mark.parametrize("verb", ["doctor", "spaces"])
def test_texts_keep_to_the_columns_asked_for(verb, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = CliRunner().invoke(app, [verb]).stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert lines


@pytest.mark.parametrize("verb", ["doctor", "spaces", "models"])
def test_a_pipe_gets_whole_lines_without_padding(verb, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = CliRunner().invoke(app, [verb]).stdout.splitlines()
    assert lines
    assert not [line for line in lines if line != line.rstrip()]
    if verb == "doctor":
        assert all(re.match(r"(ok|!!|--) [^:]+: ", line) for line in lines), "a finding a line, for grep"


def test_nothing_but_the_ends_of_lines_is_taken_away():
    file = io.StringIO()
    console = PlainConsole(file=Unpadded(file), width=20)
    console.print(Text("a  b"), end=" ")
    console.print(FittingTable([Column("x", ["1", "2"]), Column("y", ["", "3"])]))
    assert file.getvalue().startswith("a  b ")
    assert not [line for line in file.getvalue().split("\n") if line.endswith(" ")]


def test_a_log_has_a_line_for_each_probe():
    history, context = trials()
    small = history[0]
    assert isinstance(small.outcome, Ok)
    line = trial_line(small, context)
    assert line.startswith(f"probe 1: {title_of(LONGEST)}, micro-batch 1: fits, peak ")
    assert line.endswith(" tokens/s")
    assert trial_line(history[-1], context).endswith("micro-batch 3,907: OOM in backward")
