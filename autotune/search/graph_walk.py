"""Walk the decision graph: a pure function from what was tried to what to try next.

The walk starts anew at the graph's start each time and follows recorded outcomes as far as they go; the first
candidate without an outcome is the next to try. So there is no state to store, and resuming is replaying.

Where the memory model knows a rung, the walk passes over what is predicted not to fit beyond its interval, and
growth goes straight to the largest micro-batch that should fit. Such steps are decided anew each time too: a probe
that teaches the model better makes the walk come back to what it passed over. At the walk's end a smaller micro-batch
is probed where those measured on either side of it tell that it is faster (`interpolation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.candidate import Candidate
from autotune.memory.predictor import Predictor
from autotune.outcome import Ok, Oom, Unsupported
from autotune.search.context import SearchContext
from autotune.search.graph import DONE, LOST, Growth, Node
from autotune.search.growth import Bracket, Grower
from autotune.search.interpolation import faster_between
from autotune.search.path import SearchEnd, Step
from autotune.search.strategy import Done, Skip, Try
from autotune.search.wording import comes_nearest
from autotune.techniques.axis import listed
from autotune.techniques.families import title as title_of
from autotune.trial import History, Trial


class GraphWalk:
    """The space's decision graph, with the memory model where there is one."""

    name = "graph"
    prices = False

    def propose(self, history: History, context: SearchContext) -> Try | Done:
        """Return the next candidate to probe, or Done with the path taken through the graph.

        The context's predictor is calibrated by the history here. Without one, only measurements count.
        """
        predictor = context.predictor
        learned = predictor.calibrated(history, context.budget) if predictor else None
        return _Walk(history, context, learned).decide()


def edge_of(trial: Trial, context: SearchContext) -> str:
    """Return the name of the edge that a trial's outcome takes.

    A probe that trained but left less than the headroom free counts as `oom`: it does not fit what was asked.
    """
    match trial.outcome:
        case Ok(memory=memory):
            return "ok" if context.fits(memory) else "oom"
        case Oom(phase=phase):
            return _oom_in(phase)
        case outcome:
            return outcome.kind


class _Walk:
    def __init__(self, history: History, context: SearchContext, predictor: Predictor | None) -> None:
        self._history = history
        self._known = {trial.candidate: trial for trial in history}
        self._graph = context.space.graph
        self._context = context
        self._predictor = predictor
        self._path: list[Step] = []
        self._skipped: list[Skip] = []
        self._beyond = 1
        """Smallest micro-batch that did not fit on the last rung grown."""
        self._allowed: Mapping[str, Any] = {}
        """What this walk has that the graph does not set."""

    def decide(self) -> Try | Done:
        """Walk the graph as it is; where only memory is lacking, again with each change that the user allowed."""
        if (found := self._walk({}) or self._last_resort()) is not None:
            return found
        for allowed in self._context.allowances:
            if not self._lacks_memory():
                break
            if (found := self._walk(allowed)) is not None:
                return found
        return (
            self._last_resort()
            or self._between()
            or self._done("the graph is walked to its end", "exhausted")
        )

    def _walk(self, allowed: Mapping[str, Any]) -> Try | Done | None:
        """Return what one walk comes to; None at its end. What is `allowed` holds in all of its nodes."""
        self._beyond, self._allowed = 1, allowed
        name, candidate = self._graph.start, self._context.base.model_copy(update=allowed)
        while name != DONE:
            node = self._graph.nodes[name]
            if node.set is not None:
                rung = self._context.computed_natively(candidate.model_copy(update={**node.set, **allowed}))
                if self._context.passes_over(rung) or (allowed and self._excludes(rung, allowed)):
                    name, candidate = node.target("unsupported"), rung
                    continue
                step = self._set(name, node, rung)
            else:
                assert node.grow is not None
                step = self._grow(name, candidate, node.grow)
            if isinstance(step, Try):
                return step
            self._path.append(step)
            if step.edge == "crash":
                return self._done(f"{title_of(step.candidate)} crashed", "crashed")
            if step.edge == "unsupported" and self._refuses(step.candidate, allowed):
                return None
            name, candidate = node.target(step.edge), step.candidate
        return None

    def _lacks_memory(self) -> bool:
        """Tell whether nothing fitted on the way so far, and memory was lacking."""
        edges = [step.edge for step in self._path]
        return "ok" not in edges and any(edge.startswith("oom") for edge in edges)

    def _excludes(self, rung: Candidate, allowed: Mapping[str, Any]) -> bool:
        """Tell whether what is allowed does not go with a rung's other techniques: there is nothing to journal."""
        refused = self._context.refusal(rung)
        if refused is None or refused.cause not in {"axes", "space"}:
            return False
        return refused.axis is None or not {refused.axis, *refused.others}.isdisjoint(allowed)

    def _refuses(self, candidate: Candidate, allowed: Mapping[str, Any]) -> bool:
        """Tell whether what is allowed was refused for itself: a package is missing, say. So it is on every rung."""
        outcome = self._known[candidate].outcome if candidate in self._known else None
        return isinstance(outcome, Unsupported) and outcome.axis in allowed

    def _set(self, name: str, node: Node, rung: Candidate) -> Step | Try:
        batches = self._context.batches(rung)
        start = min(self._beyond, batches.limit) if node.micro_batch == "beyond" else batches.above(0) or 1
        candidate = rung.at(start)
        if (
            self._is_lost(candidate)
            and (other := batches.above(start) or batches.up_to(0, start - 1)) is not None
        ):
            candidate = rung.at(other)  # the one says nothing of the rung, which is tried at another
        if (trial := self._known.get(candidate)) is not None:
            return Step(node=name, edge=edge_of(trial, self._context), candidate=candidate)
        match self._foreseen(candidate):
            case "over":
                return Step(
                    node=name, edge=self._skip(candidate, name), candidate=candidate, evidence="predicted"
                )
            case "fits" if self._is_calibrated() and self._grows_after(node):
                # Growth measures this rung at the micro-batch that matters; here it would be measured twice.
                return Step(node=name, edge="ok", candidate=candidate, evidence="predicted")
        return self._try(candidate, name, self._reason(node))

    def _grow(self, name: str, candidate: Candidate, growth: Growth) -> Step | Try:
        grown = Grower(candidate, growth, self._edges(candidate), self._context, self._predictor).go()
        if isinstance(grown, Bracket):
            foreseen = grown.failing is not None and candidate.at(grown.failing) not in self._known
            if foreseen:
                self._skip(candidate.at(grown.failing or 0), name)
            self._beyond = grown.failing or grown.largest
            return Step(
                node=name,
                edge="oom" if grown.failing is not None else "limit",
                candidate=candidate.at(grown.largest),
                evidence="predicted" if foreseen else "measured",
            )
        return self._try(candidate.at(grown.micro_batch), name, grown.why)

    def _is_lost(self, candidate: Candidate) -> bool:
        trial = self._known.get(candidate)
        return trial is not None and edge_of(trial, self._context) == LOST

    def _edges(self, candidate: Candidate) -> dict[int, str]:
        """Return what the trials of a rung came to, by micro-batch."""
        rung = candidate.rung()
        return {
            trial.candidate.micro_batch: edge_of(trial, self._context)
            for trial in self._history
            if trial.candidate.rung() == rung
        }

    def _last_resort(self) -> Try | None:
        """Measure what comes nearest where nothing fitted and something was only predicted not to.

        Only a probe proves that nothing fits. One is enough: what is predicted to take still more is not tried.
        """
        if not self._skipped or any(edge_of(trial, self._context) == "ok" for trial in self._history):
            return None
        least = min(self._skipped, key=lambda skip: skip.prediction.peak)
        assert self._predictor is not None
        for trial in self._history:
            bounds = self._predictor.bounds(trial.candidate)
            failed = edge_of(trial, self._context).startswith("oom")
            if failed and bounds is not None and bounds.mean <= least.prediction.peak:
                return None
        return self._try(least.candidate, least.node, comes_nearest(least.prediction.peak))

    def _between(self) -> Try | None:
        """Measure what growth passed by, where it should be faster than the fastest."""
        found = faster_between(self._history, self._context)
        if found is None:
            return None
        rung = found.candidate.rung()
        grown = [step.node for step in self._path if step.candidate.rung() == rung]
        return self._try(found.candidate, grown[-1] if grown else self._graph.start, found.why)

    def _foreseen(self, candidate: Candidate) -> str | None:
        bounds = self._predictor.bounds(candidate) if self._predictor else None
        if bounds is None:
            return None
        if bounds.low > self._context.usable:
            return "over"
        return "fits" if bounds.high <= self._context.usable else "unsure"

    def _skip(self, candidate: Candidate, node: str) -> str:
        """Note that a candidate is passed over; return the edge that its OOM would take."""
        assert self._predictor is not None
        prediction = self._predictor.predict(candidate)
        assert prediction is not None
        self._skipped.append(Skip(candidate, node, prediction))
        return _oom_in(self._predictor.phase_above(candidate, self._context.usable))

    def _is_calibrated(self) -> bool:
        return any(isinstance(trial.outcome, Ok) for trial in self._history)

    def _grows_after(self, node: Node) -> bool:
        target = node.target("ok")
        return target != DONE and self._graph.nodes[target].grow is not None

    def _try(self, candidate: Candidate, node: str, why: str) -> Try:
        return Try(candidate, node, why, tuple(self._path), tuple(self._skipped))

    def _done(self, why: str, reason: SearchEnd) -> Done:
        return Done(why, reason, tuple(self._path), tuple(self._skipped))

    def _reason(self, node: Node) -> str:
        if not self._path:
            return self._reason_of_start()
        if self._allowed and node is self._graph.nodes[self._graph.start]:
            return f"nothing else fits, and {listed([str(value) for value in self._allowed.values()])} may be tried"
        last = self._path[-1]
        title = title_of(last.candidate)
        if node.micro_batch == "beyond":
            return f"{title} fits up to micro-batch {last.candidate.micro_batch}: does a larger one pay?"
        if last.evidence == "predicted":
            return f"{title} is predicted not to fit"
        return f"{title} {_RESULTS[last.edge]}"

    def _reason_of_start(self) -> str:
        node, speed = self._graph.nodes[self._graph.start], self._context.device_speed
        rung = self._context.base.model_copy(update=node.set or {})
        native = self._context.computed_natively(rung)
        if speed is None or native == rung:
            return "start of the graph"
        ratio = speed.matrix_flops[native.precision] / speed.matrix_flops[rung.precision]
        return (
            f"start of the graph; {rung.precision} is emulated here, and matrix products in {native.precision} are "
            f"{ratio:.1f} times as fast"
        )


def _oom_in(phase: str) -> str:
    return f"oom_{phase}" if phase in {"build", "forward", "backward", "optimizer"} else "oom"


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
    LOST: "remains unknown",
}
