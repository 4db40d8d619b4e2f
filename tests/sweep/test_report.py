"""What is shown of a night: status, report, and the pages."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.errors import InputError
from autotune.sweep.matrix import Cell
from autotune.sweep.night import find_night, new_night
from autotune.sweep.page import night_page, nights_beside, write_pages
from autotune.sweep.start import cells_before, run_night
from tests.fakes.executor import ArithmeticExecutor, crash, slower
from tests.fakes.runs import BIG
from tests.fakes.sweeps import ArithmeticExecution, asked

HOSTILE = "<script>alert(1)</script>\x1b[31m & co"


def failing(spec) -> ArithmeticExecutor:
    executor = ArithmeticExecutor(BIG)
    if spec.model.name == "gpt2" and spec.goal.seq_len == 64:
        executor.inspection = crash(HOSTILE)
    return executor


def slow(spec) -> ArithmeticExecutor:
    executor = ArithmeticExecutor(BIG)
    executor.answer = lambda candidate: slowed(executor.device.outcome(candidate))
    return executor


def slowed(outcome):
    return slower(outcome, 1.5) if outcome.kind == "ok" else outcome


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    found = []
    for make in (slow, failing):
        night = new_night("nightly", folder / "runs")
        run_night(asked(folder), night, execution=ArithmeticExecution(make))
        found.append(night)
    return found


def said(*words) -> str:
    ended = CliRunner().invoke(app, ["sweep", *map(str, words)], env={"COLUMNS": "200"})
    assert ended.exit_code == 0, ended.exception
    return ended.stdout


def test_status_counts_and_report_compares_with_the_night_before(nights):
    runs = nights[0].root.parents[2]
    text = said("status", "--runs", runs)
    assert "it is over" in text
    assert "4 of 4 cells ended (1 the model fails, 3 proven)" in text
    shown = said("report", "nightly", "--runs", runs)
    assert "gpt2-small-long-minimal" in shown
    assert re.search(r" \+\d\d\.\d% ", shown)  # it was slower the night before
    assert "\x1b" not in shown
    document = json.loads(said("report", nights[1].root, "--json"))
    changes = {one["cell"]: one["change"] for one in document["results"]}
    assert changes["gpt2-small-short-minimal"] is None
    assert changes["tiny-llama-small-long-minimal"] > 0.1


def test_a_night_is_found_by_path_name_and_sweep(nights):
    runs = nights[0].root.parents[2]
    first, second = nights
    assert find_night("last", runs).root == second.root
    assert find_night("nightly", runs).root == second.root
    assert find_night(f"nightly/{first.id}", runs).root == first.root
    assert find_night(str(first.root), runs).root == first.root
    with pytest.raises(InputError, match="did you mean nightly"):
        find_night("nigthly", runs)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"href", "src"}]


def test_pages_hold_all_that_they_show_and_lead_to_each_other(nights):
    runs = nights[0].root.parents[2]
    for night in nights:
        page, index = map(Path, said("report", night.root, "--html", "--runs", runs).split())
    for file in (page, index):
        parsed = Page(file.read_text())
        assert not {"script", "link", "img", "iframe"} & {*parsed.tags}
        for link in parsed.links:
            assert "://" not in link
            target = nights[1].root if file == page else nights[1].root.parent
            assert (target / link).exists(), link
    text = page.read_text()
    assert "tokens/s" in text
    assert text.count("<svg") == 3  # a trend of each cell that had a winner in both nights
    assert "&lt;script&gt;" in text
    assert "\\x1b[31m" in text
    run = nights[1].run("gpt2-small-long-minimal").root / "report.html"
    assert "Probes" in run.read_text()
    assert "plotly" not in run.read_text()


def test_names_of_cells_and_models_are_escaped_too(nights):
    night = nights[1]
    hostile = [cell.model_copy(update={"model": HOSTILE, "hardware": "<b>"}) for cell in cells_before(night)]
    text = night_page(night, nights_beside(night), hostile, frozenset())
    assert "<script" not in text
    assert "<b>" not in text


def test_what_is_not_there_yet_is_no_page(tmp_path):
    night = new_night("nightly", tmp_path / "runs")
    with pytest.raises(InputError):
        write_pages(night, [Cell(id="x", model="m", hardware="h", goal="g")])
