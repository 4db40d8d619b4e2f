"""What each technique declares of itself, as Markdown for the page of its family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from autotune import assets
from autotune.candidate import OPEN, Candidate
from autotune.environment import how_to_install
from autotune.search.space import Space
from autotune.techniques.axis import Axis, Value
from autotune.techniques.check import RULES, Exclusion
from autotune.techniques.consent import BY_CONSENT
from autotune.techniques.constraint import ANY
from autotune.techniques.families import FAMILIES, axes_of
from benchmarks.markdown import block, table

HARDWARE = {"bf16": "a device that computes in bf16", "fp8": "a GPU that multiplies 8-bit floats"}
"""What a number type asks of the device, in words."""


def file_name(family: ModuleType) -> str:
    """Return the name of a family's page."""
    return f"{family.__name__.rpartition('.')[2]}.md"


def heading(family: ModuleType) -> str:
    """Return a family's name as a heading has it."""
    return file_name(family).removesuffix(".md").replace("_", " ").capitalize()


def shown(value: object) -> str:
    """Return a value as a search space has it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def code(axis: str, values: object) -> str:
    """Return an axis with some of its values as a search space has them."""
    listed = values if isinstance(values, list | tuple) else [values]
    return f"`{axis}: {', '.join(map(shown, listed))}`"


A_NUMBER = "a number"
"""How a page calls any number of an open axis."""


def index() -> str:
    """Return the table of families: their axes, and the page of each."""
    rows = []
    for family in FAMILIES:
        axes = ", ".join(f"`{axis.name}`" for axis in axes_of(family))
        rows.append(
            (f"[{heading(family)}](techniques/{file_name(family)})", axes, (family.__doc__ or "").strip())
        )
    return block(table(("page", "axes", "what it is about"), rows))


def declared(family: ModuleType) -> str:
    """Return every axis of a family with its values, what each saves, costs and needs, and what excludes what."""
    lines: list[str] = []
    for axis in axes_of(family):
        field = Candidate.model_fields[axis.name]
        lines += [f"### `{axis.name}`", "", (field.description or "").replace("\n", " "), ""]
        for names, value in _alike(axis):
            told = [f"- **{what}** {text}" for what, text in _told(value)]
            told += [f"- **Changes what is learned:** {said}" for said in _changes(axis.name, names)]
            if told and names[0] != axis.default:
                told.append(f"- {_tried(axis.name, names)}")
                aside = " (the default)" if names[0] == axis.default else ""
                aside += f" (`{value.short}` on a command line)" if value.short else ""
                lines += [f"**`{axis.name}: {'`, `'.join(map(shown, names))}`**{aside}", "", *told, ""]
    rows = list(dict.fromkeys(_excluded(tuple(axis.name for axis in axes_of(family)))))
    if rows:
        lines += ["### What does not go together", "", *table(("this", "not with", "because"), rows), ""]
    return block(lines[:-1])


def _alike(axis: Axis) -> Iterator[tuple[tuple[Any, ...], Value]]:
    """Give values that follow each other and say the same, together."""
    groups: list[tuple[list[Any], Value]] = []
    for name, value in axis.values.items():
        if groups and name != axis.default and replace(groups[-1][1], title="") == replace(value, title=""):
            groups[-1][0].append(name)
        else:
            groups.append(([name], value))
    for names, value in groups:
        yield tuple(names), value
    if axis.number is not None:
        yield (A_NUMBER,), axis.number


def _told(value: Value) -> Iterator[tuple[str, str]]:
    """Give what a page says of a value, point by point."""
    for what, text in (("Saves:", value.saves), ("Costs:", value.costs), ("Leave it out where", value.avoid)):
        if text:
            yield what, text
    needs = [f"`{how_to_install(package)}`" for package in value.packages]
    needs += [HARDWARE[kind] for kind in value.dtypes]
    if value.needs_compiler:
        needs.append("a C++ compiler for the cpu device, Triton for a GPU")
    if value.gpu_only:
        needs.append(f"a GPU ({value.gpu_only})")
    if needs:
        yield "Needs:", "; ".join(needs) + "."


def _changes(axis: str, values: tuple[object, ...]) -> Iterator[str]:
    """Give how each of some values changes what is learned, and what allows it."""
    for one in BY_CONSENT:
        if one.axis == axis and one.value in values:
            yield f"{one.change.how}. It is tried only by consent (`--allow {one.name}`)."


def by_consent() -> str:
    """Return the table of all values that change what is learned, the smallest change first."""
    rows = [(f"`--allow {one.name}`", code(one.axis, one.value), one.change.how) for one in BY_CONSENT]
    return block(table(("what to type", "what is then tried too", "how what is learned differs"), rows))


def _tried(axis: str, values: tuple[object, ...]) -> str:
    """Return which shipped search spaces try some of the values."""
    spaces = [
        f"`{name}`"
        for name, space in _shipped().items()
        if any(_is_among((node.set or {}).get(axis), axis, values) for node in space.graph.nodes.values())
        or (A_NUMBER in values and ANY in space.axes.get(axis, ()))
    ]
    if not spaces:
        return "**Tried by:** no shipped search space. Name it in your own, or predict it with `autotune estimate`."
    return f"**Tried by:** `--space` {', '.join(spaces)}."


def _is_among(value: object, axis: str, values: tuple[object, ...]) -> bool:
    return value in values or (axis in OPEN and type(value) is int and A_NUMBER in values)


@cache
def _shipped() -> dict[str, Space]:
    """Return the search spaces that ship with autotune, by their names."""
    names = (name for name in assets.shipped_names() if name != "hardware")
    return {name: Space.parse(assets.find_text(name), name) for name in names}


def _excluded(axes: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Give every rule that names one of the axes: what has it, what it goes without, and the reason."""
    for one in RULES:
        if set(axes) & axes_named(one):
            left = [code(axis, list(values)) for axis, values in one.rule.forbid.items()]
            own = [*one.values, *([A_NUMBER] if one.numbers else [])]
            yield _all({one.axis: own, **one.rule.where}), " or ".join(left), one.rule.because


def axes_named(one: Exclusion) -> set[str]:
    """Return every axis that a rule is about."""
    return {one.axis, *one.rule.forbid, *one.rule.where}


def _all(conditions: Mapping[str, Any]) -> str:
    return " with ".join(code(axis, values) for axis, values in conditions.items())
