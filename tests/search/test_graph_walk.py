from dataclasses import dataclass

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Crash, Ok, Timeout
from autotune.search.graph_walk import GraphWalk
from autotune.search.selection import rank
from autotune.search.shipped import load_space
from autotune.search.strategy import Done
from autotune.techniques.families import title as title_of
from autotune.testing.arithmetic import Arithmetic, foreseeing, ok, search
from autotune.trial import Trial
from autotune.units import MIB

WALK = GraphWalk()


def rungs(history):
    return [(title_of(trial.candidate), trial.candidate.micro_batch, trial.outcome.kind) for trial in history]


def test_growth_doubles_then_bisects_then_asks_whether_checkpointing_pays(context):
    history, done = search(Arithmetic(budget=1000), context(), WALK)
    assert rungs(history) == [
        ("bf16", 1, "ok"), ("bf16", 2, "ok"), ("bf16", 4, "ok"), ("bf16", 8, "ok"), ("bf16", 16, "oom"),
        ("bf16", 11, "ok"), ("bf16", 13, "oom"),
        ("bf16 + checkpointing", 13, "ok"), ("bf16 + checkpointing", 22, "ok"),
        ("bf16 + checkpointing", 32, "ok"), ("bf16 + checkpointing", 64, "oom"),
    ]  # fmt: skip
    assert [step.node for step in done.path] == [
        "baseline",
        "grow",
        "checkpointing_for_more",
        "grow_checkpointed",
    ]


def test_activations_that_do_not_fit_lead_to_checkpointing(context):
    history, done = search(Arithmetic(budget=440), context(budget=440), WALK)
    assert rungs(history)[:2] == [("bf16", 1, "oom"), ("bf16 + checkpointing", 1, "ok")]
    assert history[0].outcome.phase == "forward"
    assert done.path[0].edge == "oom_forward"


def test_optimizer_state_that_does_not_fit_skips_checkpointing(context):
    history, _ = search(Arithmetic(budget=300), context(budget=300), WALK)
    assert history[0].outcome.phase == "optimizer"
    assert rungs(history)[1][0] == "bf16 + optimizer offload"


def test_a_model_that_cannot_even_be_built_goes_straight_to_full_offload(context):
    history, _ = search(Arithmetic(budget=150), context(budget=150), WALK)
    assert [r[0] for r in rungs(history)][:2] == ["bf16", "bf16 + checkpointing + full offload"]
    assert isinstance(history[1].outcome, Ok)


def test_hybrid_sharding_is_tried_over_several_nodes_and_passed_over_in_one(context):
    def shardings(nodes):
        base = Candidate(sharding="ddp")
        space = load_space("multi_gpu")
        made = context(target="640000", budget=440, base=base, gpus=4, nodes=nodes, space=space)
        history, _ = search(Arithmetic(budget=440), made, WALK)
        assert all(trial.outcome.kind != "unsupported" for trial in history)
        return list(dict.fromkeys(trial.candidate.sharding for trial in history))

    assert shardings(2) == ["ddp", "zero1", "zero2", "hsdp", "fsdp2"]
    assert shardings(1) == shardings(4) == ["ddp", "zero1", "zero2", "fsdp2"]


def test_as_many_ranks_share_a_model_as_there_are(context):
    def shared(gpus):
        space = load_space("tensor_parallel")
        made = context(target="64000", budget=440, base=Candidate(sharding="ddp"), gpus=gpus, space=space)
        history, _ = search(Arithmetic(budget=440), made, WALK)
        assert all(trial.outcome.kind != "unsupported" for trial in history)
        return list(dict.fromkeys((one.candidate.tensor_parallel, one.candidate.sharding) for one in history))

    assert shared(2) == [(1, "fsdp2"), (2, "none")]
    assert shared(4) == [(1, "fsdp2"), (2, "fsdp2"), (4, "none")]
    assert shared(8) == [(1, "fsdp2"), (2, "fsdp2"), (4, "fsdp2"), (8, "none")]
    assert shared(3) == [(1, "fsdp2")]


def test_nothing_fits_ends_the_walk(context):
    history, done = search(Arithmetic(budget=5), context(budget=5), WALK)
    assert not any(isinstance(trial.outcome, Ok) for trial in history)
    assert isinstance(done, Done)


def test_growth_stops_at_what_the_global_batch_can_use(context):
    history, _ = search(Arithmetic(budget=10**6), context(target="1000", budget=10**6), WALK)
    assert [trial.candidate.micro_batch for trial in history] == [1, 2, 4, 5, 10]


def test_exact_grows_through_divisors_only(context):
    history, _ = search(Arithmetic(budget=10**6), context(target="1800", exact=True, budget=10**6), WALK)
    assert [trial.candidate.micro_batch for trial in history] == [1, 2, 3, 6, 9, 18]


def test_too_little_headroom_counts_as_not_fitting(context):
    history, _ = search(Arithmetic(budget=1000), context(headroom=0.2), WALK)
    largest = max(
        t.candidate.micro_batch
        for t in history
        if t.candidate.checkpointing == "none" and t.outcome.kind == "ok"
    )
    assert 400 + 50 * 8 <= 800 < 400 + 50 * largest


def test_a_crash_in_growth_bounds_it_without_descending(context):
    device = Arithmetic(budget=1000)
    history = ()
    for number in range(1, 20):
        decision = WALK.propose(history, context())
        if isinstance(decision, Done):
            break
        crashed = Crash(reason="signal", phase="forward", message="SIGSEGV")
        outcome = crashed if decision.candidate.micro_batch > 4 else device.outcome(decision.candidate)
        history += (
            Trial(
                number=number,
                candidate=decision.candidate,
                node=decision.node,
                why="",
                outcome=outcome,
                seconds=1,
            ),
        )
    assert all(trial.candidate.checkpointing == "none" for trial in history)
    assert decision.path[-1].edge == "limit"


def test_a_crash_at_a_node_ends_the_search(context):
    first = WALK.propose((), context())
    crash = Crash(reason="exception", phase="forward", message="ValueError: no")
    trial = Trial(number=1, candidate=first.candidate, node=first.node, why="", outcome=crash, seconds=1)
    assert isinstance(WALK.propose((trial,), context()), Done)


def test_sgd_is_carried_through_all_nodes(context):
    from autotune.candidate import Candidate

    history, _ = search(Arithmetic(budget=440), context(budget=440, base=Candidate(optimizer="sgd")), WALK)
    assert {trial.candidate.optimizer for trial in history} == {"sgd"}
    assert ok(1).kind == "ok"


def test_only_micro_batches_that_save_a_step_are_probed(context):
    # 63 samples: 2 steps of 32 or 1 of 63; nothing between the two would be faster.
    history, _ = search(Arithmetic(budget=10**6), context(target="6250", budget=10**6), WALK)
    assert [trial.candidate.micro_batch for trial in history] == [1, 2, 4, 8, 16, 32, 63]


UNIT = 16 * MIB


def foresee(context, factor=1.0, **device):
    """Search a device with a memory model whose numbers are off by a factor; return history and decision."""
    made = Arithmetic(**device).in_units(UNIT)
    return search(made, context(budget=made.budget, predictor=foreseeing(made, factor)), WALK)


def test_prediction_goes_straight_to_the_largest_that_fits(context):
    history, done = foresee(context, budget=1000)
    assert rungs(history) == [
        ("bf16", 1, "ok"), ("bf16", 11, "ok"),
        ("bf16 + checkpointing", 32, "ok"),
    ]  # fmt: skip
    assert [(step.node, step.edge, step.evidence) for step in done.path] == [
        ("baseline", "ok", "measured"), ("grow", "oom", "predicted"),
        ("checkpointing_for_more", "ok", "predicted"), ("grow_checkpointed", "oom", "predicted"),
    ]  # fmt: skip
    assert [(title_of(skip.candidate), skip.candidate.micro_batch) for skip in done.skipped] == [
        ("bf16", 13), ("bf16 + checkpointing", 64),
    ]  # fmt: skip


def test_what_is_predicted_not_to_fit_is_passed_over_by_the_phase_it_would_fail_in(context):
    history, done = foresee(context, budget=300)
    assert rungs(history)[0][:2] == ("bf16 + optimizer offload", 1)
    assert (done.path[0].edge, done.path[0].evidence) == ("oom_optimizer", "predicted")
    assert history[0].why == "bf16 is predicted not to fit"


def test_nothing_counts_as_not_fitting_before_something_was_measured(context):
    history, done = foresee(context, budget=5)
    assert rungs(history) == [("bf16 + checkpointing + full offload", 1, "oom")]
    assert history[0].why.startswith("nothing is predicted to fit; this comes nearest")
    assert isinstance(done, Done)


def test_a_skip_is_taken_back_when_probes_show_that_the_model_was_too_high(context):
    history, _ = foresee(context, factor=3.0, budget=1000)
    titles = [title for title, _, _ in rungs(history)]
    assert titles[0] == "bf16 + optimizer offload"  # 1350 of 1000 predicted for the baseline, 450 in truth
    assert "bf16" in titles[1:]
    assert ("bf16", 11, "ok") in rungs(history)


def test_a_model_that_is_too_low_costs_probes_but_no_winner(context):
    history, _ = foresee(context, factor=0.5, budget=1000)
    assert ("bf16", 11, "ok") in rungs(history)
    assert len(history) < 11  # what the blind search takes


def test_a_timeout_after_a_jump_falls_back_to_doubling(context):
    device = Arithmetic(budget=1000).in_units(UNIT)
    foreseen, history = context(budget=device.budget, predictor=foreseeing(device)), ()
    while not isinstance(decision := WALK.propose(history, foreseen), Done):
        slow = decision.candidate.micro_batch > 4
        outcome = Timeout(phase="forward", seconds=1) if slow else device.outcome(decision.candidate)
        history += (
            Trial(
                number=len(history) + 1, candidate=decision.candidate, node="n", why="", outcome=outcome, seconds=1
            ),
        )  # fmt: skip
    plain = [trial.candidate.micro_batch for trial in history if trial.candidate.checkpointing == "none"]
    assert plain == [1, 11, 2, 4, 8]


@dataclass(frozen=True)
class OfItsOwnMind(Arithmetic):
    """A compiler whose peak rises and falls with the budget, and whose speed does too."""

    def outcome(self, candidate):
        each = {"none": 50, "75%": 60, "50%": 20, "25%": 120}[candidate.activation_memory_budget]
        outcome = Arithmetic(self.budget, activations=each).outcome(candidate)
        if isinstance(outcome, Ok):
            pace = {"none": 0.02, "75%": 0.03, "50%": 0.02, "25%": 0.01}[candidate.activation_memory_budget]
            outcome = ok(outcome.memory.peak(), pace * candidate.micro_batch, budget=self.budget)
        return outcome


@pytest.mark.parametrize("budget", [455, 1000])  # where 25% and 75% do not fit at all, and where all do
def test_a_budget_that_takes_more_when_it_allows_less_does_not_mislead(budget, context):
    bounds = context(budget=budget, space=load_space("compiled"))
    history, _ = search(OfItsOwnMind(budget), bounds, WALK)
    seen = {(trial.candidate.activation_memory_budget, trial.outcome.kind) for trial in history}
    if budget == 455:
        assert {("75%", "oom"), ("50%", "ok"), ("25%", "oom")} < seen
    else:
        assert {(kept, "ok") for kept in ("none", "75%", "50%", "25%")} < seen
    winner = rank(history, bounds)[0].trial.candidate
    assert winner.activation_memory_budget == {455: "none", 1000: "25%"}[budget]
    largest = {kept: max((trial.candidate.micro_batch for trial in history if isinstance(trial.outcome, Ok)
               and trial.candidate.activation_memory_budget == kept
               and trial.candidate.checkpointing == "none"), default=0)
               for kept in ("none", "75%", "50%", "25%")}  # fmt: skip
    assert all(largest["50%"] > most for kept, most in largest.items() if kept != "50%")
