"""Put what techniques declare, and what `benchmarks.techniques` measured on this CPU, into the page on techniques.

    python -m benchmarks.techniques_page --write docs/techniques.md

Only what stands between the marks is made; the page's own sentences stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.techniques.axis import Value
from autotune.techniques.families import FAMILIES, axes_of
from benchmarks.marked import fill
from benchmarks.recording import RESULTS

RECORD = RESULTS / "techniques-cpu.json"


def page(written: str, document: dict[str, Any]) -> str:
    """Return the page with the record's numbers between its marks."""
    maker = "benchmarks/techniques_page.py"
    return fill(fill(written, maker, declared(), "declared"), maker, measured(document))


def declared() -> str:
    """Return what every technique says of itself, as Markdown: family by family, value by value."""
    lines: list[str] = []
    for family in FAMILIES:
        axes = axes_of(family)
        lines += ["", f"### {family_name(family)}", "", (family.__doc__ or "").strip(), ""]
        for axis in axes:
            for name, value in axis.values.items():
                if value.saves:
                    shown = {True: "on", False: "off"}[name] if isinstance(name, bool) else name
                    lines.append(f"- **`{axis.name}: {shown}`**")
                    lines += [f"  - {what}: {text}" for what, text in _told(value)]
    return "\n".join([*lines, "", ""])


def family_name(family: ModuleType) -> str:
    """Return a family's heading."""
    return family.__name__.rpartition(".")[2].replace("_", " ").capitalize()


def _told(value: Value) -> Iterator[tuple[str, str]]:
    yield "saves", value.saves
    yield "costs", value.costs
    yield "not where", value.avoid
    if value.packages:
        yield "needs", ", ".join(f"`{name}`" for name in value.packages)


def measured(document: dict[str, Any]) -> str:
    """Return the tables, and what they come to, as Markdown."""
    rows: list[dict[str, Any]] = document["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    by_model = [[row for row in rows if row["model"] == model] for model in models]
    lines = [""]
    for part, title in (("alone", "One at a time"), ("ladder", "The ladder, each on top of those before")):
        heads = [f"{model}: less memory | time of a step" for model in models]
        lines += [f"| {title} | {' | '.join(heads)} |", "|---|" + "---|---|" * len(models)]
        for same in zip(*by_model, strict=True):
            if same[0]["part"] == part:
                lines.append(f"| {same[0]['technique']} | {' | '.join(map(_cells, same))} |")
        lines.append("")
    errors = [abs(row["error"]) for row in rows]
    reached = ", ".join(
        f"{max(row['times_less'] for row in own):.1f} times on the {model} model"
        for model, own in zip(models, by_model, strict=True)
    )
    lines += [
        f"Less memory than the fp32 baseline at the same micro-batch, at the end of the ladder: {reached}.",
        f"Predicted peaks are off by {statistics.median(errors):.2%} in the median and {max(errors):.2%} at worst,",
        f"over {len(errors)} trainings.",
        "",
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> str:
    return f"{row['times_less']:.2f} x | {row['times_slower']:.2f} x"


def main() -> None:
    """Print what was measured; write the page where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="the page to put the numbers into")
    options = parser.parse_args()
    document = json.loads(RECORD.read_text())
    print(measured(document))
    if options.write:
        options.write.write_text(page(options.write.read_text(encoding="utf-8"), document), encoding="utf-8")


if __name__ == "__main__":
    main()
