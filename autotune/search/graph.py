"""The decision graph as data: which configuration to try next, given what the last probe came to.

A node either *sets* axes of the candidate and probes it once, or *grows* the micro-batch of the current rung.
An edge leads from a result to the next node, or to `done`. The graph is walked by `graph_walk`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from autotune.bounds import MicroBatch
from autotune.candidate import AXES, Candidate, is_choice, listed_values
from autotune.errors import nearest
from autotune.printable import printable, quoted
from autotune.techniques.families import UNORDERED
from autotune.validation import Frozen

DONE = "done"
"""The target that ends the search; the best of all trials is then chosen."""

LOST = "lost"
"""The result of a candidate that something outside ended each time. It has no edge: the walk goes on as it can."""

SET_EDGES: tuple[str, ...] = (
    "ok", "oom", "oom_build", "oom_forward", "oom_backward", "oom_optimizer",
    "non_finite", "timeout", "unsupported",
)  # fmt: skip
"""Results of a `set` node. `oom_PHASE` takes precedence over `oom`: the phase tells what can still help."""
GROW_EDGES: tuple[str, ...] = ("oom", "limit")
"""Results of a `grow` node: a larger micro-batch does not fit, or none larger makes sense or works."""
TELLING_EDGES: tuple[str, ...] = ("ok", "oom", "oom_forward", "oom_backward", "limit")
"""Results that tell of memory while activations are alive."""


NodeName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,59}$")]
"""What a node is called: a name that stands in a drawing as it is."""
MOST_NODES = 300
"""Nodes of a graph."""


class Growth(Frozen):
    """How to look for the largest micro-batch that fits: multiply until it does not, then bisect."""

    factor: Annotated[int, Field(ge=2, le=16)] = 2
    resolution: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Bisection ends when the gap is at most this share of the largest that fits (and always at a gap of 1)."""
    largest: MicroBatch | None = None
    """Micro-batch beyond which nothing is tried: where a library has a limit, say. None grows as far as it pays."""


class Node(Frozen):
    """One decision. Exactly one of `set` and `grow` is given; a missing edge means `done`."""

    title: str
    """What people see in the table and in the drawing."""
    set: dict[str, Any] | None = None
    """Axes to change on the current candidate before probing it."""
    micro_batch: Literal["smallest", "beyond"] = "smallest"
    """Where a `set` node starts: at the smallest micro-batch, or just beyond the largest one that fits so far."""
    grow: Growth | None = None
    """Look for the largest micro-batch of the current rung."""
    next: dict[str, str] = Field(default_factory=dict)
    """Result to node; see SET_EDGES and GROW_EDGES."""

    @model_validator(mode="after")
    def _one_action(self) -> Node:
        problems = []
        if (self.set is None) == (self.grow is None):
            problems.append("a node has either 'set' or 'grow'")
        edges = SET_EDGES if self.set is not None else GROW_EDGES
        problems += [
            f"next.{edge}: a node of this kind has no such edge; {nearest(edge, edges)}"
            for edge in self.next
            if edge not in edges
        ]
        for axis, value in (self.set or {}).items():
            if axis not in AXES:
                problems.append(f"set.{axis}: unknown axis; {nearest(axis, AXES)}")
            elif not is_choice(axis, value):
                problems.append(f"set.{axis}: {quoted(value)} is not one of {listed_values(axis)}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def target(self, edge: str) -> str:
        """Return the node that an edge leads to: its own, else that of the result without phase, else `done`.

        LOST goes on with the next rung, where there is one: nothing else is left to try.
        """
        edge = "oom" if edge == LOST else edge
        return self.next.get(edge) or self.next.get(edge.split("_")[0], DONE)


class Graph(Frozen):
    """Nodes by name, and where to start. Every target exists, every node can be reached, and no path loops."""

    start: str
    nodes: Annotated[dict[NodeName, Node], Field(min_length=1, max_length=MOST_NODES)]

    @model_validator(mode="after")
    def _is_sound(self) -> Graph:
        problems = [f"nodes.{DONE}: this name means the end of the search"] if DONE in self.nodes else []
        if self.start not in self.nodes:
            problems.append(f"start: there is no node {self.start!r}; {nearest(self.start, self.nodes)}")
        for name, node in self.nodes.items():
            problems += [
                f"nodes.{name}.next.{edge}: there is no node {target!r}; {nearest(target, [*self.nodes, DONE])}"
                for edge, target in node.next.items()
                if target != DONE and target not in self.nodes
            ]
        if not problems:
            reached = self._reachable()
            problems += [f"nodes.{name}: no edge leads here" for name in self.nodes if name not in reached]
            if loop := self._loop():
                problems.append(f"nodes: the path {' -> '.join(loop)} is a loop")
            problems += self._presumed()
            if self.nodes[self.start].grow is not None:
                problems.append("start: the first node must 'set' a candidate before one can grow")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _reachable(self) -> set[str]:
        reached, pending = set(), [self.start]
        while pending:
            name = pending.pop()
            if name not in reached and name != DONE:
                reached.add(name)
                pending += self.nodes[name].next.values()
        return reached

    def _loop(self) -> list[str]:
        """Return the nodes of some loop, or an empty list."""
        sound: set[str] = set()

        def visit(name: str, path: list[str]) -> list[str]:
            if name in path:
                return [*path[path.index(name) :], name]
            if name in sound:
                # Of others every path through a wide graph would be walked, of which there is no end.
                return []
            for target in self.nodes[name].next.values():
                if target != DONE and (found := visit(target, [*path, name])):
                    return found
            sound.add(name)
            return []

        return visit(self.start, [])

    def _presumed(self) -> list[str]:
        """Return where a value of an unordered axis is tried or not by what another value came to."""
        problems = []
        for axis in UNORDERED:
            default = Candidate.model_fields[axis].default
            values = {name: (node.set or {}).get(axis, default) for name, node in self.nodes.items()}
            nodes = [name for name, value in values.items() if value != default]
            for one in nodes:
                for other in nodes:
                    if values[one] == values[other] or other not in self._told(one):
                        continue
                    if DONE in self._told(one, without=other) or self.nodes[other].micro_batch == "beyond":
                        problems.append(
                            f"nodes.{other}: what {axis} {values[one]} came to ({one}) tells nothing of "
                            f"{values[other]}, so every edge has to lead here (of its growth too), and the micro-batch "
                            "is `smallest`"
                        )
        return problems

    def _told(self, start: str, without: str | None = None) -> set[str]:
        """Return every node that results telling of memory lead to from `start`, and `done`; not through `without`."""
        reached: set[str] = set()
        pending = [start]
        while pending:
            name = pending.pop()
            node = self.nodes[name]
            edges = SET_EDGES if node.set is not None else GROW_EDGES
            following = {node.target(edge) for edge in edges if edge in TELLING_EDGES} - reached - {without}
            reached |= {target for target in following if target is not None}
            pending += [target for target in following if target not in {DONE, None}]
        return reached

    def mermaid(self, taken: tuple[tuple[str, str], ...] = ()) -> str:
        """Return the graph as a Mermaid flowchart; `taken` are the (node, edge) pairs to mark."""
        lines = ["flowchart TD", f"    _start([start]) --> {self.start}"]
        links: list[tuple[str, str]] = []
        for name, node in self.nodes.items():
            title = _in_a_drawing(node.title)
            shape = f'{name}["{title}"]' if node.set is not None else f'{name}[/"{title}"/]'
            lines.append(f"    {shape}")
            for edge in SET_EDGES if node.set is not None else GROW_EDGES:
                if edge in node.next or edge in {"ok", "oom", "limit"}:  # the others seldom end a search
                    lines.append(f"    {name} -- {edge} --> {node.target(edge)}")
                    links.append((name, edge))
        lines.append(f"    {DONE}([choose the fastest and prove it])")
        if taken:
            visited = sorted({name for name, _ in taken})
            lines.append("    classDef taken fill:#d5f5d5,stroke:#2a7a2a,stroke-width:2px")
            lines.append(f"    class {','.join(visited)} taken")
            drawn = [(n, e) if (n, e) in links else (n, e.split("_")[0]) for n, e in taken]
            marked = [str(links.index(step) + 1) for step in drawn if step in links]
            if marked:
                lines.append(f"    linkStyle 0,{','.join(marked)} stroke:#2a7a2a,stroke-width:3px")
        return "\n".join(lines) + "\n"


def _in_a_drawing(text: str) -> str:
    """Return text that Mermaid shows as it is: in its quotes, without markup of its own or of HTML."""
    codes = {character: f"#{ord(character)};" for character in '"#<>&`\n\\'}
    return printable("".join(codes.get(character, character) for character in text))
