"""Pages that a script makes say what it would say today."""

from pathlib import Path

from benchmarks.largest_model import page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_largest_models_are_those_of_the_formulas():
    written = (DOCS / "largest_model.md").read_text()
    assert written == page(), "make it anew: python -m benchmarks.largest_model --write docs/largest_model.md"
