"""Walk the decision graph: a pure function from what was tried to what to try next.

The walk starts anew at the graph's start each time and follows recorded outcomes as far as they go; the first
candidate without an outcome is the next to try. So there is no state to store, and resuming is replaying.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.graph import DONE, Growth, Node
from autotune.outcome import Ok, Oom
from autotune.space import Space
from autotune.strategies.decision import Decision, Done, Scope, Step, Try
from autotune.trial import History, Trial


def propose(history: History, space: Space, scope: Scope) -> Decision:
    """Return the next candidate to probe, or Done with the path taken through the graph."""
    known = {trial.candidate: trial for trial in history}
    name, candidate = space.graph.start, scope.base
    path: list[Step] = []
    beyond = 1  # smallest micro-batch that did not fit on the last rung grown
    while name != DONE:
        node = space.graph.nodes[name]
        if node.set is not None:
            start = min(beyond, scope.limit) if node.micro_batch == "beyond" else _smallest(scope)
            candidate = candidate.model_copy(update={**node.set, "micro_batch": start})
            if (trial := known.get(candidate)) is None:
                return Try(candidate, name, _reason(node, path), tuple(path))
            edge = edge_of(trial, scope)
            if edge == "crash":
                return Done(f"{candidate.title()} crashed", (*path, Step(name, edge, candidate)))
        else:
            assert node.grow is not None
            growth = _grow(candidate, node.grow, known, scope)
            if growth.next is not None:
                return Try(candidate.at(growth.next), name, growth.why, tuple(path))
            candidate = candidate.at(growth.largest)
            beyond = growth.failing or growth.largest
            edge = "oom" if growth.failing is not None else "limit"
        path.append(Step(name, edge, candidate))
        name = node.target(edge)
    return Done("the graph is walked to its end", tuple(path))


def edge_of(trial: Trial, scope: Scope) -> str:
    """Return the name of the edge that a trial's outcome takes.

    A probe that trained but left less than the headroom free counts as `oom`: it does not fit what was asked.
    """
    match trial.outcome:
        case Ok(memory=memory):
            return "ok" if scope.fits(memory) else "oom"
        case Oom(phase=phase):
            return f"oom_{phase}" if phase in {"build", "forward", "backward", "optimizer"} else "oom"
        case outcome:
            return outcome.kind


@dataclass(frozen=True)
class _Growth:
    """How far growth has come: the largest that fits, the smallest that does not, and what to try next."""

    largest: int
    failing: int | None
    next: int | None = None
    why: str = ""


def _grow(candidate: Candidate, growth: Growth, known: dict[Candidate, Trial], scope: Scope) -> _Growth:
    """Double until it does not fit, then bisect between the largest that fits and the smallest that does not.

    A larger micro-batch that ends in anything but `ok` or `oom` (a crash, a timeout) ends growth like the goal's
    own limit does: it says nothing about memory, and the sizes next to it would cost as much.
    """
    low, high = candidate.micro_batch, scope.limit + 1
    failing: int | None = None
    while True:
        if failing is None:
            size = scope.between(low, low * growth.factor, high)
            why = f"micro-batch {low} fits: try {size}"
        elif failing - low <= max(1, int(low * growth.resolution)):
            return _Growth(low, failing)
        else:
            size = scope.between(low, (low + failing) // 2, failing)
            why = f"{low} fits and {failing} does not: bisect"
        if size is None:
            return _Growth(low, failing)
        if (trial := known.get(candidate.at(size))) is None:
            return _Growth(low, failing, size, why)
        match edge_of(trial, scope).split("_")[0]:
            case "ok":
                low = size
            case "oom":
                failing = high = size
            case _:
                return _Growth(low, failing)


def _smallest(scope: Scope) -> int:
    return scope.between(0, 1, scope.limit + 1) or 1


_RESULTS = {
    "ok": "fits",
    "oom": "does not fit",
    "oom_build": "ran out of memory while the model was built",
    "oom_forward": "ran out of memory in forward",
    "oom_backward": "ran out of memory in backward",
    "oom_optimizer": "ran out of memory in the optimizer step",
    "non_finite": "did not stay finite",
    "timeout": "ran out of time",
    "unsupported": "is not supported",
    "limit": "is as large as the goal allows",
}


def _reason(node: Node, path: list[Step]) -> str:
    if not path:
        return "start of the graph"
    last = path[-1]
    title = last.candidate.title()
    if node.micro_batch == "beyond":
        return f"{title} fits up to micro-batch {last.candidate.micro_batch}: does a larger one pay?"
    return f"{title} {_RESULTS[last.edge]}"
