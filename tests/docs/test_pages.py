"""Pages that a script makes say what it would say today."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from ruamel.yaml import YAML

from autotune.cli import app
from autotune.devices.hardware import table
from autotune.devices.simulated import HOST_MEMORY
from autotune.search.shipped import load_space
from autotune.search.space import Space
from autotune.techniques import checkpointing, precision
from autotune.techniques.check import RULES
from autotune.techniques.constraint import axis_problems
from autotune.techniques.families import FAMILIES, axes_of
from benchmarks import (
    largest_model,
    ranks_page,
    records_page,
    technique_declarations,
    technique_measurements,
    techniques_page,
)
from benchmarks.markdown import read
from benchmarks.recording import RESULTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_largest_models_are_those_of_the_record_and_the_formulas():
    written = (DOCS / "largest_model.md").read_text()
    rows = json.loads(largest_model.RECORD.read_text())["rows"]
    assert written == largest_model.page(rows), (
        "make it anew: python -m benchmarks.largest_model --write docs/largest_model.md"
    )


def test_no_cell_of_one_gpu_is_refuted_by_its_trace():
    rows = json.loads(largest_model.RECORD.read_text())["rows"]
    traces = {(row["rung"], row["layers"]): row["traced"] for row in rows}
    smaller = 0
    for hardware in table().hardware:
        for rung in (rung for rung in largest_model.RUNGS if rung.candidate):
            by_formula = largest_model.largest(hardware, rung)
            by_trace = largest_model.largest_traced(hardware, rung, traces)
            assert traces[rung.title, by_trace] <= largest_model.room(hardware)
            smaller += by_trace < by_formula
    assert smaller  # what the formulas alone would claim does not fit everywhere


def test_the_page_assumes_the_host_memory_of_simulated_gpus():
    assert largest_model.HOST == HOST_MEMORY


def test_the_pages_on_techniques_are_those_of_declarations_and_records():
    written = techniques_page.read_pages(DOCS / "techniques.md")
    assert written == techniques_page.pages(written), (
        "make them anew: python -m benchmarks.techniques_page --write docs/techniques.md"
    )
    assert {f"techniques/{path.name}" for path in (DOCS / "techniques").iterdir()} == {*written} - {
        "techniques.md"
    }


def test_the_ladder_of_techniques_saves_what_it_promises():
    document = read("techniques-cpu")
    best = [
        max(row["times_less"] for row in document["rows"] if row["model"] == model)
        for model in document["models"]
    ]
    assert min(best) >= 15


def test_a_technique_without_a_number_is_said_to_be_not_measured():
    techniques, ranks, _ = techniques_page.records()
    first = {**techniques[0], "rows": techniques[0]["rows"][:1]}  # the plain run alone
    made = technique_measurements.measured(checkpointing, [first], ranks, {"rows": []})
    assert "Not measured: `benchmarks/results/techniques-cpu.json` has none of these values." in made
    made = technique_measurements.measured(precision, [first], ranks, {"rows": []})
    assert "| `precision: fp32` | 1.00 | 1.00 |" in made
    assert "| `precision: bf16` | not measured | not measured |" in made


def test_every_rule_is_on_the_page_of_each_family_that_it_names():
    written = techniques_page.read_pages(DOCS / "techniques.md")
    for one in RULES:
        for axis in technique_declarations.axes_named(one):
            (family,) = (one for one in FAMILIES if axis in {declared.name for declared in axes_of(one)})
            assert one.rule.because in written[f"techniques/{technique_declarations.file_name(family)}"]


def test_what_a_page_shows_of_a_search_space_is_valid():
    blocks = [
        (page, YAML(typ="safe").load(block))
        for page in sorted(DOCS.rglob("*.md"))
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert len(blocks) >= 10
    for page, block in blocks:
        if "axes" not in block:
            continue
        assert not axis_problems(block["axes"]), page
        for node in block["graph"]["nodes"].values():
            for axis, value in node.get("set", {}).items():
                assert value in block["axes"][axis], page
        if "name" in block:
            Space.load(block, str(page))


@pytest.mark.parametrize("name", records_page.PAGES)
def test_what_a_page_says_of_records_is_in_them(name: str):
    written = (DOCS / name).read_text()
    assert written == records_page.page(name, written), (
        "make it anew: python -m benchmarks.records_page --write docs/runs.md"
    )


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "README.md", *ROOT.glob("[AC]*.md"), *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\((?!https?://)([^)]+)\)", page.read_text()):
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}


def test_every_command_that_a_page_shows_has_the_options_that_it_names():
    group = cast(Any, typer.main.get_command(app))
    shown = [
        (page, line)
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line.startswith("autotune ")
    ]
    assert len(shown) >= 50
    for page, line in shown:
        verb, *arguments = shlex.split(line, comments=True)[1:]
        try:
            command = group.get_command(typer.Context(group), verb)
            context = command.make_context(verb, arguments)
            if verb == "sweep":
                context = command.get_command(context, arguments[0]).make_context(arguments[0], arguments[1:])
        except Exception as error:
            raise AssertionError(f"{page.name}: {line}") from error
        assert verb == "spaces" or not context.args, f"{page.name}: {line}"


def test_every_page_is_linked_from_the_readme_or_the_index_of_techniques():
    linked = " ".join((ROOT / name).read_text() for name in ("README.md", "docs/techniques.md"))
    for page in DOCS.rglob("*.md"):
        assert page.relative_to(DOCS).as_posix() in linked, page


def test_what_ranks_hold_is_what_the_record_says():
    written = (DOCS / "ranks.md").read_text()
    assert written == ranks_page.page(written, json.loads(ranks_page.RECORD.read_text())), (
        "make it anew: python -m benchmarks.ranks_page --write docs/ranks.md"
    )


def test_what_is_said_of_the_h100_is_what_the_record_holds():
    text = " ".join((DOCS / "step_time.md").read_text().split())
    rows = json.loads((RESULTS / "step_time.json").read_text())["rows"]
    for shortest, longest in ((0, 4096), (8192, 16384), (32768, 32768)):
        ratios = [
            row["ratio"]
            for row in rows
            if row["gpu"].startswith("h100") and shortest <= row["seq_len"] <= longest
        ]
        assert f"{min(ratios):.2f} to {max(ratios):.2f}" in text
        assert f"({len(ratios)} rows)" in text


def test_everything_says_that_its_graph_tries_some_of_its_axes():
    space = load_space("everything")
    tried = {axis for node in space.graph.nodes.values() for axis in node.set or {}}
    assert tried == {"precision", "checkpointing", "loss", "activation_offload", "offload", "offload_to"}
    assert len(tried) < len(space.axes)
    assert "Its other axes are in no node" in " ".join(space.description.split())
