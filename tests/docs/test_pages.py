"""Pages that a script makes say what it would say today."""

import json
from pathlib import Path

from benchmarks import ranks_page, techniques_page
from benchmarks.largest_model import page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_largest_models_are_those_of_the_formulas():
    written = (DOCS / "largest_model.md").read_text()
    assert written == page(), "make it anew: python -m benchmarks.largest_model --write docs/largest_model.md"


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
