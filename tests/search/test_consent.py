"""How what was allowed, though it changes what is learned, enters a search."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Ok, Oom, Outcome, Unsupported
from autotune.search.graph_walk import GraphWalk
from autotune.search.guided import Guided
from autotune.search.ladder import Ladder
from autotune.search.shipped import load_space
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Done
from autotune.techniques.consent import changing
from autotune.testing.arithmetic import Arithmetic, search

WALK = GraphWalk()


@dataclass(frozen=True)
class Heavy(Arithmetic):
    """Fits nothing but a candidate with all the changes of `light`; refuses what `refused` says."""

    light: frozenset[str] = frozenset()
    refused: str = ""

    def outcome(self, candidate: Candidate) -> Outcome:
        names = {one.name for one in changing(candidate)}
        if self.refused in names:
            axis = next(one.axis for one in changing(candidate) if one.name == self.refused)
            return Unsupported(reason="a package is missing", axis=axis, cause="package")
        if self.light <= names:
            return replace(self, light=frozenset(), activations=10, weights=0, state=0).plain(candidate)
        return Oom(phase="build", requested=2 * self.budget, free=self.budget)

    def plain(self, candidate: Candidate) -> Outcome:
        return Arithmetic.outcome(self, candidate)


def tried(history):
    """Return the changes of each trial's candidate."""
    return [tuple(one.name for one in changing(trial.candidate)) for trial in history]


def test_a_space_is_widened_by_what_is_allowed_and_by_nothing_else(context):
    wider = context(space=load_space("default"), base=Candidate(optimizer="sgd")).allowing(
        ["fp8", "lora", "adafactor"]
    )
    assert wider.space.axes["precision"] == ("bf16", "fp16", "fp32", "fp8")
    assert wider.space.axes["adapters"] == ("none", "lora")
    assert wider.space.axes["optimizer"] == ("sgd", "adafactor"), "what the user fixed comes first"
    assert wider.space.graph == load_space("default").graph
    assert context(space=load_space("minimal")).allowing([]).space == load_space("minimal")
    listed = context(space=load_space("finetune")).allowing(["lora"])
    assert listed.space.axes["adapters"] == ("lora", "qlora")


def test_the_graph_comes_to_what_is_allowed_only_where_nothing_else_fits(context):
    fits = Arithmetic(budget=1000)
    plain, _ = search(fits, context(), WALK)
    assert search(fits, context().allowing(["lora"]), WALK)[0] == plain
    history, done = search(
        Heavy(1000, light=frozenset({"lora"})), context().allowing(["lora", "adamw-8bit"]), WALK
    )
    first = next(place for place, names in enumerate(tried(history)) if names)
    assert not any(tried(history)[:first])
    assert tried(history)[first] == ("adamw-8bit",), "the smaller change comes first"
    lora = [trial for trial in history if trial.candidate.adapters == "lora"]
    assert lora[0].candidate == Candidate(adapters="lora"), "the whole descent begins anew"
    assert {trial.candidate.optimizer for trial in lora} == {"adamw"}, "no more is changed than is needed"
    assert isinstance(lora[0].outcome, Ok)
    assert max(trial.candidate.micro_batch for trial in lora) > 1
    assert [step.node for step in done.path].count("baseline") == 3


def test_what_does_not_help_alone_is_tried_together(context):
    both = frozenset({"lora", "adamw-8bit"})
    history, _ = search(Heavy(1000, light=both), context().allowing(both), WALK)
    kinds = list(dict.fromkeys(names for names in tried(history)))
    assert kinds == [(), ("adamw-8bit",), ("lora",), ("adamw-8bit", "lora")]
    assert isinstance(history[-1].outcome, Ok) or any(isinstance(t.outcome, Ok) for t in history)


def test_what_cannot_run_here_is_refused_once(context):
    device = Heavy(1000, light=frozenset({"lora"}), refused="adamw-8bit")
    history, _ = search(device, context().allowing(["lora", "adamw-8bit"]), WALK)
    assert tried(history).count(("adamw-8bit",)) == 1


def test_what_excludes_a_rung_is_passed_over_without_a_trial(context):
    """4-bit weights do not go with full offload, which ends the plain descent."""
    history, _ = search(
        Heavy(1000, light=frozenset({"sgd"})), context(space=load_space("minimal")).allowing(["qlora"]), WALK
    )
    changed = [trial.candidate for trial in history if trial.candidate.adapters == "qlora"]
    assert [one.checkpointing for one in changed] == ["none", "full"]
    assert {one.offload for one in changed} == {"none"}


@pytest.mark.parametrize("outcome", ["non_finite", "timeout"])
def test_nothing_more_is_changed_where_memory_was_not_lacking(context, outcome):
    from autotune.outcome import NonFinite, Timeout

    class Broken(Arithmetic):
        def outcome(self, candidate):
            return (
                NonFinite(phase="forward", step=1, what="loss")
                if outcome == "non_finite"
                else Timeout(phase="forward", seconds=1.0)
            )

    history, done = search(Broken(1000), context().allowing(["lora"]), WALK)
    assert not any(tried(history))
    assert isinstance(done, Done)


def test_a_precision_that_was_allowed_competes_and_a_fallback_does_not(context):
    axes = ("precision", "checkpointing")
    rungs = [
        Candidate(precision=precision, checkpointing=checkpointing)
        for precision in ("bf16", "fp16", "fp32", "bf16-pure", "fp8")
        for checkpointing in ("none", "full")
    ]
    ladder = Ladder(Candidate(), axes, rungs)
    assert [one.precision for one in rungs if ladder.competes(one, Candidate())] == [
        "bf16", "bf16", "bf16-pure", "bf16-pure", "fp8", "fp8",
    ]  # fmt: skip
    assert {one.precision for one in rungs if ladder.competes(one, Candidate(precision="fp32"))} == {"fp32"}
    pure = Candidate(precision="bf16-pure", checkpointing="full")
    assert ladder.reference(pure) == Candidate()
    assert ladder.differing(pure) == axes
    assert Candidate(precision="bf16-pure") in ladder.parts(pure)


@pytest.mark.parametrize("name", ["grid", "random"])
def test_other_strategies_search_what_is_allowed_too(context, name):
    wide = context(space=load_space("minimal"), limits={"max_probes": 60}, target="100").allowing(["sgd"])
    history, _ = search(Arithmetic(budget=1000), wide, STRATEGIES[name])
    assert {trial.candidate.optimizer for trial in history} == {"adamw", "sgd"}


def test_optuna_draws_a_precision_that_was_allowed_and_no_fallback(context):
    wide = context(space=load_space("basic")).allowing(["bf16-pure"])
    history, _ = search(Arithmetic(budget=1000), wide, STRATEGIES["optuna"])
    assert {trial.candidate.precision for trial in history} == {"bf16", "bf16-pure"}


def test_guided_search_has_what_is_allowed_among_its_rungs(context):
    wide = context(space=load_space("minimal")).allowing(["bf16-pure", "lora"])
    assert {(rung.precision, rung.adapters) for rung in wide.ladder.rungs} == {
        (precision, adapters) for precision in ("bf16", "bf16-pure") for adapters in ("none", "lora")
    }
    assert Guided.prices
