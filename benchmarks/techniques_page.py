"""Put what techniques declare, and what was measured of them, into the pages on techniques.

    python -m benchmarks.techniques_page --write docs/techniques.md

fills that page, and the page of each family in the folder of its name (docs/techniques/). Only what stands between the
marks is made; the pages' own sentences stay. A value without a measurement is said to have none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune.techniques.families import FAMILIES
from benchmarks.markdown import fill, read
from benchmarks.recording import RESULTS
from benchmarks.technique_declarations import by_consent, declared, file_name, index
from benchmarks.technique_measurements import Document, ladder, measured

MAKER = "benchmarks/techniques_page.py"


def pages(written: dict[str, str]) -> dict[str, str]:
    """Return the page `techniques.md`, and those of all families, as the declarations and records have them today."""
    techniques, ranks, accuracy = records()
    made = {
        "techniques.md": fill(
            fill(
                fill(written["techniques.md"], MAKER, index(), "declared"), MAKER, by_consent(), "by consent"
            ),
            MAKER, _ladders(techniques),
        )
    }  # fmt: skip
    for family in FAMILIES:
        name = f"techniques/{file_name(family)}"
        numbers = measured(family, techniques, ranks, accuracy)
        made[name] = fill(fill(written[name], MAKER, declared(family), "declared"), MAKER, numbers)
    return made


def records() -> tuple[list[Document], Document, Document]:
    """Return the records of single techniques (one for each kind of device), of ranks, and of predictions."""
    kinds = sorted(path.stem for path in RESULTS.glob("techniques-*.json") if "smallest" not in path.stem)
    return [read(kind) for kind in kinds], read("ranks"), read("memory_accuracy-part1")


def read_pages(index_page: Path) -> dict[str, str]:
    """Return the pages as they are written, by their names beside the index."""
    folder = index_page.parent
    names = ["techniques.md", *(f"techniques/{file_name(family)}" for family in FAMILIES)]
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def _ladders(techniques: list[Document]) -> str:
    return "".join(ladder(document) for document in techniques)


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", type=Path, required=True, metavar="PAGE.md", help="docs/techniques.md")
    path = parser.parse_args().write
    for name, text in pages(read_pages(path)).items():
        (path.parent / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
