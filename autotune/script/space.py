"""The search space of a user's command: what its mapping can express, with a decision graph over it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.candidate import AXES, Candidate
from autotune.errors import InputError
from autotune.script.template import text_of, value_of
from autotune.search.graph import DONE, Graph, Growth, Node
from autotune.search.space import Space
from autotune.techniques.consent import ByConsent, leaves_alone
from autotune.techniques.families import title
from autotune.training_command import TrainingCommand

LADDER = ("checkpointing", "checkpointed_blocks", "activation_offload", "sharding", "offload")
"""The axes that give up speed for memory: each is tried where what stands before it does not fit, and in this order."""


def expressed(command: TrainingCommand) -> dict[str, tuple[Any, ...]]:
    """Return the values of each axis that a command can express, the plainest first.

    That is the candidate's default where it is one of them, else the first that the mapping has.
    """
    found = {}
    for axis in AXES:
        if axis in command.axes:
            values = [value_of(axis, text) for text in command.axes[axis]]
            default = Candidate.model_fields[axis].default
            found[axis] = tuple(sorted(values, key=lambda value, plain=default: value != plain))  # type: ignore[misc]
    return found


def base_of(command: TrainingCommand, candidate: Candidate) -> Candidate:
    """Return a candidate with values that the command can express; of axes that it does not name it keeps its own."""
    plain = {
        axis: values[0]
        for axis, values in expressed(command).items()
        if getattr(candidate, axis) not in values
    }
    return candidate.model_copy(update=plain)


def refusal(command: TrainingCommand, candidate: Candidate) -> tuple[str, str] | None:
    """Return the axis whose value a command cannot express, and the sentence that says so, or None."""
    for axis, values in command.axes.items():
        text = text_of(getattr(candidate, axis))
        if text not in values:
            return axis, f"nothing in the command's mapping says {axis} {text}; it has {', '.join(values)}"
    return None


def space_of(command: TrainingCommand, allowed: tuple[ByConsent, ...] = ()) -> Space:
    """Return all that a command can express and that leaves what is learned alone, or is `allowed`.

    Its graph tries the plain rung, then every alternative that may be faster by itself, then the techniques that save
    memory, one on the other, as far as something larger could fit.
    """
    consented = {(one.axis, one.value) for one in allowed}
    axes = {
        axis: kept
        for axis, values in expressed(command).items()
        if (
            kept := tuple(
                value
                for place, value in enumerate(values)
                if place == 0 or leaves_alone(axis, value) or (axis, value) in consented
            )
        )
    }
    return Space(
        name="command", description=f"What {command.words[0]} ... can be told.",
        axes=axes or {"checkpointing": ("none",)},
        graph=_graph(axes),
    )  # fmt: skip


def within(space: Space, command: TrainingCommand) -> Space:
    """Return a space of the user's own. Raises InputError for values that the command cannot express."""
    can = expressed(command)
    problems = []
    for axis, values in space.axes.items():
        if axis not in can:
            if len(values) > 1:
                problems.append(
                    f"--space: axes.{axis}: nothing in the command carries {axis}; map it with --axes"
                )
            continue
        problems += [
            f"--space: axes.{axis}: nothing in the command's mapping says {text_of(value)}"
            for value in values
            if value not in can[axis]
        ]
    if problems:
        raise InputError(problems, about="space")
    return space


def _graph(axes: Mapping[str, tuple[Any, ...]]) -> Graph:
    plain = {axis: values[0] for axis, values in axes.items()}
    faster = [
        {**plain, axis: value} for axis, values in axes.items() if axis not in LADDER for value in values[1:]
    ]
    saving: list[dict[str, Any]] = []
    for axis in LADDER:
        before = saving[-1] if saving else plain
        saving += [{**before, axis: value} for value in axes.get(axis, ())[1:]]
    rungs = [plain, *faster, *saving]
    nodes: dict[str, Node] = {}
    for number, rung in enumerate(rungs):
        following = f"rung{number + 1}" if number + 1 < len(rungs) else DONE
        beyond = number > len(faster)  # what only saves memory is of use where something larger did not fit
        after_limit = following if number < len(faster) else DONE
        name = _title(rung)
        nodes[f"rung{number}"] = Node(
            title=name, set=rung, micro_batch="beyond" if beyond else "smallest",
            next={
                "ok": f"grow{number}", "oom": following, "unsupported": following, "non_finite": following,
                "timeout": following,
            },
        )  # fmt: skip
        nodes[f"grow{number}"] = Node(
            title=f"Grow the micro-batch of {name}", grow=Growth(),
            next={"oom": following, "limit": after_limit},
        )  # fmt: skip
    return Graph(start="rung0", nodes=nodes)


def _title(rung: Mapping[str, Any]) -> str:
    """Return what a rung is called; a precision that the command is not told is not known here."""
    whole = title(Candidate(**rung))
    return whole if "precision" in rung else whole.partition(" + ")[2] or "As it is"
