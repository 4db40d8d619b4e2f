"""All techniques, in the order in which keys, titles and tables show them."""

from __future__ import annotations

from collections.abc import Container
from types import ModuleType

from autotune.candidate import AXES, OPEN, Candidate, choices
from autotune.techniques import (
    adapters,
    allocator,
    attention,
    checkpointing,
    compile,
    data,
    kernels,
    loss,
    offload,
    optimizer,
    precision,
    sharding,
)
from autotune.techniques.axis import Axis

FAMILIES = (
    precision, adapters, attention, checkpointing, data, loss, compile, kernels, offload, optimizer, sharding,
    allocator,
)  # fmt: skip

THEMES = {
    "Techniques": (precision, adapters, attention, checkpointing, loss, compile, kernels, offload, optimizer),
    "Several GPUs": (sharding,),
    "Data": (data,),
    "Memory allocator": (allocator,),
}
"""The families under the headings of help, the common ones first."""
assert {family for families in THEMES.values() for family in families} == set(FAMILIES)


def axes_of(family: ModuleType) -> tuple[Axis, ...]:
    """Return the axes that a family declares, in its order."""
    return tuple(value for value in vars(family).values() if isinstance(value, Axis))


_BY_NAME = {axis.name: axis for family in FAMILIES for axis in axes_of(family)}
DECLARED: tuple[Axis, ...] = tuple(_BY_NAME[name] for name in AXES)
"""One for each axis of a candidate."""

for _axis in DECLARED:
    assert tuple(_axis.values) == choices(_axis.name), (
        f"{_axis.name}: declared values are not the candidate's"
    )
    assert (_axis.number is not None) == (_axis.name in OPEN), f"{_axis.name}: is it open?"

UNORDERED = tuple(axis.name for axis in DECLARED if not axis.ordered)
"""The axes of whose values none tells what another takes or how fast it is: each has to be tried for itself."""

BESIDE_PASSES = frozenset(axis.name for axis in DECLARED if axis.beside_passes)
"""The axes whose techniques take time of their own, beside the passes of the blocks."""


def title(candidate: Candidate, axes: Container[str] | None = None) -> str:
    """Return a short name of a candidate's rung for people: `bf16 + checkpointing + optimizer offload`.

    With `axes` it is of these alone, and may be empty.
    """
    parts = (
        axis.title(candidate) if axis.title else axis.declared(getattr(candidate, axis.name)).title
        for axis in DECLARED
        if axes is None or axis.name in axes
    )
    return " + ".join(part for part in parts if part)


def slowdown(axis: str, value: object) -> float:
    """Return by what a value of an axis usually multiplies the time of a step, as its technique declares it."""
    return _BY_NAME[axis].declared(value).slowdown if axis in _BY_NAME else 1.0
