"""What was measured of each technique, as Markdown for the page of its family."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from autotune.candidate import AXES
from autotune.techniques.axis import Axis
from autotune.techniques.families import axes_of
from autotune.units import MIB
from benchmarks.markdown import NOT_MEASURED, block, off, source, table
from benchmarks.technique_declarations import code, shown

Document = dict[str, Any]
Row = dict[str, Any]


def measured(family: ModuleType, techniques: list[Document], ranks: Document, accuracy: Document) -> str:
    """Return the measured numbers of a family: one device, several ranks, and how far predictions were off."""
    axes = axes_of(family)
    several = _several_ranks(axes, ranks)
    parts = [_one_device(axes, document, elsewhere=bool(several)) for document in techniques]
    lines = [line for part in (*parts, several, _predictions(axes, accuracy)) if part for line in (*part, "")]
    return block(lines[:-1])


def changes(row: Row, plain: Row) -> dict[str, str]:
    """Return the fields in which a measured candidate differs from the plain one, as a search space has them."""
    ours, theirs = fields(row), fields(plain)
    return {name: value for name, value in ours.items() if name in AXES and value != theirs.get(name)}


def fields(row: Row) -> dict[str, str]:
    """Return the fields of a recorded candidate by their names, as a search space has them."""
    pairs = (pair.partition("=") for pair in row["candidate"].split(","))
    return {name: {"on": "true", "off": "false"}.get(value, value) for name, _, value in pairs}


def ladder(document: Document) -> str:
    """Return the ladder of a record of techniques, each step on top of those before, as Markdown."""
    models = _models(document)
    by_model = [[row for row in document["rows"] if row["model"] == model] for model in models]
    rows = [
        [same[0]["technique"], *(cell for row in same for cell in _ratios(row))]
        for same in zip(*by_model, strict=True)
        if same[0]["part"] == "ladder"
    ]
    heads = [f"{model}: {what}" for model in models for what in ("peak", "time of a step")]
    reached = ", ".join(
        f"{max(row.get('times_less', 0) for row in own):.1f} times less memory on the {model} model"
        for model, own in zip(models, by_model, strict=True)
    )
    errors = [row["error"] for row in document["rows"] if row.get("error") is not None]
    return block(
        [
            *table(("each on top of those before", *heads), rows), "",
            f"The plain run is 1.00. At its best the ladder takes {reached}.",
            f"Predicted peaks of all {len(errors)} trainings were off by {off(errors)}.",
            source(document),
        ]
    )  # fmt: skip


def _models(document: Document) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in document["rows"]))


def _one_device(axes: tuple[Axis, ...], document: Document, *, elsewhere: bool) -> list[str]:
    """Return the table of one record of `benchmarks.techniques`: one line a value, also of those without a number.

    Where it has none of them, a sentence says so, but for what was measured over several ranks (`elsewhere`).
    """
    models = _models(document)
    own = {model: [row for row in document["rows"] if row["model"] == model] for model in models}
    plain = {model: own[model][0] for model in models}
    rows = []
    for axis, name in _values(axes, document):
        cells: list[str] = []
        for model in models:
            cells += _ratios(_alone(own[model], plain[model], axis, shown(name)))
        rows.append([code(axis.name, name), *cells])
    if all(set(cells) == {NOT_MEASURED} for _, *cells in rows):
        none = f"Not measured: `benchmarks/results/{document['benchmark']}.json` has none of these values."
        return [] if elsewhere else [none]
    heads = [f"{model}: {what}" for model in models for what in ("peak", "time of a step")]
    absolute = ", ".join(
        f"{row['measured'] / MIB:,.0f} MiB and {row['seconds_per_step']:.2f} s on the {model} model"
        for model, row in plain.items()
        if row.get("measured")
    )
    return [
        *table(("value", *heads), rows), "",
        f"The plain run is 1.00 (fp32 with AdamW): {absolute}.",
        source(document),
    ]  # fmt: skip


def _values(axes: tuple[Axis, ...], document: Document) -> Iterator[tuple[Axis, object]]:
    """Give every value that can be compared with a plain run, which has the others' defaults; numbers as recorded."""
    for axis in axes:
        recorded = [fields(row).get(axis.name, "") for row in document["rows"]] if axis.number else []
        numbers = sorted({int(value) for value in recorded if value.isdecimal()})
        for name in (*axis.values, *numbers):
            if name != axis.default or axis.name == "precision":
                yield axis, name


def _alone(rows: list[Row], plain: Row, axis: Axis, value: str) -> Row | None:
    """Return the row of a model that differs from the plain one in this value, or is the plain one with it."""
    if fields(plain).get(axis.name) == value:
        return plain
    for row in rows:
        changed = changes(row, plain)
        if row["part"] == "alone" and list(changed)[-1:] == [axis.name] and changed[axis.name] == value:
            return row
    return None


def _ratios(row: Row | None) -> list[str]:
    """Return peak and time of a step over those of the plain run."""
    if row is None or not row.get("times_less"):
        return [NOT_MEASURED, NOT_MEASURED]
    return [f"{1 / row['times_less']:.2f}", f"{row['times_slower']:.2f}"]


def _several_ranks(axes: tuple[Axis, ...], document: Document) -> list[str]:
    """Return the table of what `benchmarks.ranks` measured of a family's axes; nothing where it has none of them."""
    names, plain, rows = {axis.name for axis in axes}, document["rows"][0], []
    for row in document["rows"]:
        if row["ranks"] == 1:
            plain = row
        changed = changes(row, plain)
        if names & set(changed):
            rows.append(
                [
                    ", ".join(code(name, value) for name, value in changed.items()), str(row["ranks"]),
                    f"{row['peak'] / MIB:,.0f} MiB", f"{row['peak'] / plain['peak']:.2f}",
                    f"{row['seconds_per_step'] / plain['seconds_per_step']:.2f}",
                ]
            )  # fmt: skip
    if not rows:
        return []
    return [
        "Over several ranks, the fullest rank beside one rank by itself with the same micro-batch:", "",
        *table(("changed", "ranks", "peak", "peak over one rank's", "time of a step over one rank's"), rows), "",
        "The ranks share two cores, so their times say little about a GPU. "
        f"[ranks.md](../ranks.md) has what each rank holds. {source(document)}",
    ]  # fmt: skip


def _predictions(axes: tuple[Axis, ...], document: Document) -> list[str]:
    """Return how far predicted peaks were off, by value of the axes that the record of accuracy varies."""
    rows = []
    for axis in axes:
        for name in axis.values:
            errors = [row["error"] for row in document["rows"] if row.get(axis.name) == shown(name)]
            if errors:
                rows.append([code(axis.name, name), str(len(errors)), off(errors)])
    if not rows:
        return []
    return [
        "Predicted peaks beside those that torch's allocator counted:", "",
        *table(("value", "trainings", "off by"), rows), "", source(document),
    ]  # fmt: skip
