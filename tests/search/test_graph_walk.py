from dataclasses import dataclass
from functools import partial

import pytest

from autotune.candidate import Candidate
from autotune.options import load_space
from autotune.outcome import Crash, Ok, Timeout
from autotune.search.graph_walk import propose
from autotune.search.selection import rank
from autotune.search.strategy import Done
from autotune.techniques.families import title as title_of
from autotune.trial import Trial
from autotune.units import MIB
from tests.fakes.simulation import Arithmetic, foreseeing, ok, search


def rungs(history):
    return [(title_of(trial.candidate), trial.candidate.micro_batch, trial.outcome.kind) for trial in history]


def test_growth_doubles_then_bisects_then_asks_whether_checkpointing_pays(space, scope):
    history, done = search(Arithmetic(budget=1000), space, scope(), propose)
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


def test_activations_that_do_not_fit_lead_to_checkpointing(space, scope):
    history, done = search(Arithmetic(budget=440), space, scope(budget=440), propose)
    assert rungs(history)[:2] == [("bf16", 1, "oom"), ("bf16 + checkpointing", 1, "ok")]
    assert history[0].outcome.phase == "forward"
    assert done.path[0].edge == "oom_forward"


def test_optimizer_state_that_does_not_fit_skips_checkpointing(space, scope):
    history, _ = search(Arithmetic(budget=300), space, scope(budget=300), propose)
    assert history[0].outcome.phase == "optimizer"
    assert rungs(history)[1][0] == "bf16 + optimizer offload"


def test_a_model_that_cannot_even_be_built_goes_straight_to_full_offload(space, scope):
    history, _ = search(Arithmetic(budget=150), space, scope(budget=150), propose)
    assert [r[0] for r in rungs(history)][:2] == ["bf16", "bf16 + checkpointing + full offload"]
    assert isinstance(history[1].outcome, Ok)


def test_hybrid_sharding_is_tried_over_several_nodes_and_passed_over_in_one(scope):
    def shardings(nodes):
        base = Candidate(sharding="ddp")
        made = scope(target="640000", budget=440, base=base, gpus=4, nodes=nodes)
        history, _ = search(Arithmetic(budget=440), load_space("multi_gpu"), made, propose)
        assert all(trial.outcome.kind != "unsupported" for trial in history)
        return list(dict.fromkeys(trial.candidate.sharding for trial in history))

    assert shardings(2) == ["ddp", "zero1", "zero2", "hsdp", "fsdp2"]
    assert shardings(1) == shardings(4) == ["ddp", "zero1", "zero2", "fsdp2"]


def test_as_many_ranks_share_a_model_as_there_are(scope):
    def shared(gpus):
        made = scope(target="64000", budget=440, base=Candidate(sharding="ddp"), gpus=gpus)
        history, _ = search(Arithmetic(budget=440), load_space("tensor_parallel"), made, propose)
        assert all(trial.outcome.kind != "unsupported" for trial in history)
        return list(dict.fromkeys((one.candidate.tensor_parallel, one.candidate.sharding) for one in history))

    assert shared(2) == [(1, "fsdp2"), (2, "none")]
    assert shared(4) == [(1, "fsdp2"), (2, "fsdp2"), (4, "none")]
    assert shared(8) == [(1, "fsdp2"), (2, "fsdp2"), (4, "fsdp2"), (8, "none")]
    assert shared(3) == [(1, "fsdp2")]


def test_nothing_fits_ends_the_walk(space, scope):
    history, done = search(Arithmetic(budget=5), space, scope(budget=5), propose)
    assert not any(isinstance(trial.outcome, Ok) for trial in history)
    assert isinstance(done, Done)


def test_growth_stops_at_what_the_global_batch_can_use(space, scope):
    history, _ = search(Arithmetic(budget=10**6), space, scope(target="1000", budget=10**6), propose)
    assert [trial.candidate.micro_batch for trial in history] == [1, 2, 4, 5, 10]


def test_exact_grows_through_divisors_only(space, scope):
    history, _ = search(
        Arithmetic(budget=10**6), space, scope(target="1800", exact=True, budget=10**6), propose
    )
    assert [trial.candidate.micro_batch for trial in history] == [1, 2, 3, 6, 9, 18]


def test_too_little_headroom_counts_as_not_fitting(space, scope):
    history, _ = search(Arithmetic(budget=1000), space, scope(headroom=0.2), propose)
    largest = max(
        t.candidate.micro_batch
        for t in history
        if t.candidate.checkpointing == "none" and t.outcome.kind == "ok"
    )
    assert 400 + 50 * 8 <= 800 < 400 + 50 * largest


def test_a_crash_in_growth_bounds_it_without_descending(space, scope):
    device = Arithmetic(budget=1000)
    history = ()
    for number in range(1, 20):
        decision = propose(history, space, scope())
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


def test_a_crash_at_a_node_ends_the_search(space, scope):
    first = propose((), space, scope())
    crash = Crash(reason="exception", phase="forward", message="ValueError: no")
    trial = Trial(number=1, candidate=first.candidate, node=first.node, why="", outcome=crash, seconds=1)
    assert isinstance(propose((trial,), space, scope()), Done)


def test_sgd_is_carried_through_all_nodes(space, scope):
    from autotune.candidate import Candidate

    history, _ = search(
        Arithmetic(budget=440), space, scope(budget=440, base=Candidate(optimizer="sgd")), propose
    )
    assert {trial.candidate.optimizer for trial in history} == {"sgd"}
    assert ok(1).kind == "ok"


def test_only_micro_batches_that_save_a_step_are_probed(space, scope):
    # 63 samples: 2 steps of 32 or 1 of 63; nothing between the two would be faster.
    history, _ = search(Arithmetic(budget=10**6), space, scope(target="6250", budget=10**6), propose)
    assert [trial.candidate.micro_batch for trial in history] == [1, 2, 4, 8, 16, 32, 63]


UNIT = 16 * MIB


def foresee(space, scope, factor=1.0, **device):
    """Search a device with a memory model whose numbers are off by a factor; return history and decision."""
    made = Arithmetic(**device).in_units(UNIT)
    propose_with = partial(propose, predictor=foreseeing(made, factor))
    return search(made, space, scope(budget=made.budget), propose_with)


def test_prediction_goes_straight_to_the_largest_that_fits(space, scope):
    history, done = foresee(space, scope, budget=1000)
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


def test_what_is_predicted_not_to_fit_is_passed_over_by_the_phase_it_would_fail_in(space, scope):
    history, done = foresee(space, scope, budget=300)
    assert rungs(history)[0][:2] == ("bf16 + optimizer offload", 1)
    assert (done.path[0].edge, done.path[0].evidence) == ("oom_optimizer", "predicted")
    assert history[0].why == "bf16 is predicted not to fit"


def test_nothing_counts_as_not_fitting_before_something_was_measured(space, scope):
    history, done = foresee(space, scope, budget=5)
    assert rungs(history) == [("bf16 + checkpointing + full offload", 1, "oom")]
    assert history[0].why.startswith("nothing is predicted to fit; this comes nearest")
    assert isinstance(done, Done)


def test_a_skip_is_taken_back_when_probes_show_that_the_model_was_too_high(space, scope):
    history, _ = foresee(space, scope, factor=3.0, budget=1000)
    titles = [title for title, _, _ in rungs(history)]
    assert titles[0] == "bf16 + optimizer offload"  # 1350 of 1000 predicted for the baseline, 450 in truth
    assert "bf16" in titles[1:]
    assert ("bf16", 11, "ok") in rungs(history)


def test_a_model_that_is_too_low_costs_probes_but_no_winner(space, scope):
    history, _ = foresee(space, scope, factor=0.5, budget=1000)
    assert ("bf16", 11, "ok") in rungs(history)
    assert len(history) < 11  # what the blind search takes


def test_a_timeout_after_a_jump_falls_back_to_doubling(space, scope):
    device = Arithmetic(budget=1000).in_units(UNIT)
    foreseen = partial(propose, predictor=foreseeing(device))
    history = ()
    while not isinstance(decision := foreseen(history, space, scope(budget=device.budget)), Done):
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
        each = {"none": 50, "75%": 60, "50%": 20, "25%": 120}[candidate.memory_budget]
        outcome = Arithmetic(self.budget, activations=each).outcome(candidate)
        if isinstance(outcome, Ok):
            pace = {"none": 0.02, "75%": 0.03, "50%": 0.02, "25%": 0.01}[candidate.memory_budget]
            outcome = ok(outcome.memory.peak(), pace * candidate.micro_batch, budget=self.budget)
        return outcome


@pytest.mark.parametrize("budget", [455, 1000])  # where 25% and 75% do not fit at all, and where all do
def test_a_budget_that_takes_more_when_it_allows_less_does_not_mislead(budget, scope):
    space, bounds = load_space("compiled"), scope(budget=budget)
    history, _ = search(OfItsOwnMind(budget), space, bounds, propose)
    seen = {(trial.candidate.memory_budget, trial.outcome.kind) for trial in history}
    if budget == 455:
        assert {("75%", "oom"), ("50%", "ok"), ("25%", "oom")} < seen
    else:
        assert {(kept, "ok") for kept in ("none", "75%", "50%", "25%")} < seen
    winner = rank(history, bounds)[0].trial.candidate
    assert winner.memory_budget == {455: "none", 1000: "25%"}[budget]
    largest = {kept: max((trial.candidate.micro_batch for trial in history if isinstance(trial.outcome, Ok)
               and (trial.candidate.memory_budget, trial.candidate.checkpointing) == (kept, "none")), default=0)
               for kept in ("none", "75%", "50%", "25%")}  # fmt: skip
    assert all(largest["50%"] > most for kept, most in largest.items() if kept != "50%")
