"""Pages that a script makes say what it would say today."""

import json
from pathlib import Path

from autotune.devices.hardware import table
from autotune.devices.simulated import HOST_MEMORY
from autotune.options import load_space
from benchmarks import largest_model, ranks_page, techniques_page
from benchmarks.recording import RESULTS

DOCS = Path(__file__).parents[2] / "docs"


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


def test_the_techniques_numbers_are_those_of_the_record():
    written = (DOCS / "techniques.md").read_text()
    document = json.loads(techniques_page.RECORD.read_text())
    assert written == techniques_page.page(written, document), (
        "make it anew: python -m benchmarks.techniques_page --write docs/techniques.md"
    )
    best = [
        max(row["times_less"] for row in document["rows"] if row["model"] == model)
        for model in document["models"]
    ]
    assert min(best) >= 15, "the ladder as a whole"


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
