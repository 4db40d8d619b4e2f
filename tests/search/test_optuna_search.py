"""Search by Optuna's TPE on devices made of arithmetic: where it starts, what it draws, and where it ends."""

import statistics
import subprocess
import sys
from dataclasses import replace

import optuna
import pytest

from autotune.candidate import Candidate
from autotune.outcome import Lost, NonFinite, Ok, Oom, Timeout, Unsupported
from autotune.search.enumeration import legal_rung
from autotune.search.optuna_search import NEAREST, PATIENCE, STARTS, OptunaSearch
from autotune.search.selection import rank
from autotune.search.space import Space
from autotune.search.strategy import Done, TraceFirst, Try
from autotune.search.tpe import ObservedTrial, Parameter, draws
from autotune.testing.arithmetic import timeline
from autotune.trial import Trial
from tests.search.test_guided import UNIT, Techniques, make_context

SIZED = {"size": Parameter("share"), "axis": Parameter("unordered", 2)}


def search(device, context, verdicts=None, most=60):
    """Search to the end, tracing what is asked for and what is tried; return the history, what was traced, the end."""
    history, traced = (), []
    while not isinstance(decision := OptunaSearch().propose(history, context), Done):
        rungs = decision.rungs if isinstance(decision, TraceFirst) else (decision.candidate.rung(),)
        new = [rung for rung in rungs if context.predictor and not context.predictor.covers(rung)]
        if new:
            predictor = context.predictor
            for rung in new:
                predictor = predictor.with_timeline(rung, timeline(device, rung))
            context = context.informed(predictor, context.speed, refused=context.refused)
            traced.append(tuple(new))
            continue
        outcome = (verdicts or {}).get(decision.candidate) or device.outcome(decision.candidate)
        history += (trial(len(history) + 1, decision, outcome),)
        assert len(history) <= most
    return history, traced, decision


def trial(number, decision, outcome):
    return Trial(
        number=number, candidate=decision.candidate, node=decision.node, why=decision.why, outcome=outcome, seconds=1.0
    )  # fmt: skip


def test_memory_is_a_constraint_and_what_broke_it_has_no_speed():
    kept = [ObservedTrial({"size": size / 10, "axis": 0}, value=1 - size / 10) for size in range(5)]
    broken = [ObservedTrial({"size": size / 10, "axis": 0}, None, excess=size / 10) for size in range(5, 11)]
    drawn = [one["size"] for one in draws(SIZED, kept + broken, seed=1, most=20)]
    assert sum(size < 0.6 for size in drawn) > 15, "larger ones are better, up to where memory ends"
    places = [size / 10 for size in range(2, 9)]
    least, most = (
        [ObservedTrial({"size": at, "axis": 0}, None, excess=abs(at - end)) for at in places]
        for end in (0, 1)
    )
    low, high = (
        statistics.median(one["size"] for one in draws(SIZED, seen, 1, 20)) for seen in (least, most)
    )
    assert low < 0.5 < high, "what broke it by least leads to where it is kept"


def test_draws_follow_from_what_was_seen_and_the_seed():
    seen = [ObservedTrial({"size": size / 10, "axis": size % 2}, value=float(size)) for size in range(8)]
    before = optuna.logging.get_verbosity()
    assert list(draws(SIZED, seen, 3, 5)) == list(draws(SIZED, seen, 3, 5)) != list(draws(SIZED, seen, 4, 5))
    assert optuna.logging.get_verbosity() == before


def test_it_starts_from_what_is_predicted_to_be_fast():
    device = Techniques(budget=900).in_units(UNIT)
    history, traced, done = search(device, make_context(device))
    singles, combined = traced[0], traced[1]
    assert Candidate() in singles
    assert Candidate(compile="regional") in singles
    assert combined == (Candidate(compile="regional", loss="chunked"),)
    assert history[0].candidate == combined[0].at(8), (
        "the fastest, at the largest micro-batch that surely fits"
    )
    assert [one.node for one in history[:STARTS]] == ["start"] * STARTS
    assert [one.node for one in history[STARTS:]] == ["TPE"] * (len(history) - STARTS)
    assert done.reason == "settled"
    assert len(history) == 1 + PATIENCE


def test_nothing_is_drawn_that_is_predicted_not_to_fit():
    device = Techniques(budget=900).in_units(UNIT)
    history, _, _ = search(device, make_context(device))
    assert not any(isinstance(one.outcome, Oom) for one in history)
    without = replace(make_context(device), predictor=None, speed=None)
    assert any(isinstance(one.outcome, Oom) for one in search(device, without)[0])


def test_without_predictions_it_starts_from_the_plain_rung_and_comes_to_the_fastest():
    device = Techniques(budget=900).in_units(UNIT)
    context = replace(make_context(device), predictor=None, speed=None)
    history, traced, _ = search(device, context)
    assert history[0].candidate == Candidate(micro_batch=1)
    assert not traced
    best = rank(history, context)[0].trial.candidate
    assert (best.compile, best.attention) == ("regional", "sdpa")


def test_where_nothing_is_predicted_to_fit_the_nearest_is_measured_once():
    device = Techniques(budget=5).in_units(UNIT)
    history, _, done = search(device, make_context(device, "basic"))
    assert [one.node for one in history] == [NEAREST]
    assert history[0].candidate == Candidate(checkpointing="full", offload="full", micro_batch=1)
    assert done.reason == "settled"
    assert done.skipped, "and says what was passed over"


def test_a_scared_memory_model_is_put_right_by_the_nearest():
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device, "basic")
    threefold = replace(device, weights=3 * device.weights, state=3 * device.state,
                        activations=3 * device.activations, checkpointed=3 * device.checkpointed)  # fmt: skip
    predictor = context.predictor
    for rung in context.rungs():
        predictor = predictor.with_timeline(rung, timeline(threefold, rung))
    history, _, _ = search(device, context.informed(predictor, device))
    assert rank(history, context)[0].trial.candidate.checkpointing == "none"


@pytest.mark.parametrize(
    ("outcome", "precision"),
    [
        (Unsupported(reason="no bf16", axis="precision"), "fp16"),
        (NonFinite(phase="forward", step=1, what="loss"), "fp16"),
        (Unsupported(reason="no Triton", axis="kernels"), "bf16"),
        (Oom(phase="forward"), "bf16"),
        (Timeout(phase="forward", seconds=1.0), "bf16"),
    ],
)
def test_another_precision_is_taken_only_where_the_device_refuses_the_one_before(outcome, precision):
    device = Techniques(budget=900).in_units(UNIT)
    context = replace(make_context(device, "basic"), predictor=None, speed=None)
    first = OptunaSearch().propose((), context)
    assert isinstance(first, Try)
    assert first.candidate.precision == "bf16"
    following = OptunaSearch().propose((trial(1, first, outcome),), context)
    assert following.candidate.precision == precision


def test_what_was_lost_is_left_out_and_not_tried_again():
    device = Techniques(budget=900).in_units(UNIT)
    context = replace(make_context(device, "basic"), predictor=None, speed=None)
    first = OptunaSearch().propose((), context)
    lost = Lost(cause="worker", phase="forward", message="SIGKILL")
    history, _, _ = search(device, context, {first.candidate: lost})
    assert [one.candidate for one in history].count(first.candidate) == 1
    assert any(
        isinstance(one.outcome, Ok) and one.candidate.rung() == first.candidate.rung() for one in history
    )


def test_a_rung_that_cannot_run_where_probes_do_is_not_proposed():
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device)
    learned = OptunaSearch().propose((), context)
    refused = frozenset(rung for rung in learned.rungs if rung.compile != "none")
    assert refused
    history, _, _ = search(device, replace(context, refused=refused))
    assert not any(one.candidate.rung() in refused for one in history)


def test_a_draw_becomes_a_legal_rung_whatever_the_order_of_its_axes():
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device, "basic")
    wanted = {"offload": "full", "checkpointing": "full"}
    rung = legal_rung(wanted, context)
    assert rung == legal_rung(dict(reversed(wanted.items())), context) == Candidate(**wanted)
    assert legal_rung({"offload": "full", "checkpointing": "none"}, context) == Candidate()


def test_numbers_of_blocks_are_drawn_in_order():
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device, "basic")
    axes = {"checkpointing": ("none", "full"), "checkpointed_blocks": ("all", 1, 2, 3, 4, 5)}
    space = Space.load(context.space.model_dump(mode="json") | {
        "axes": axes, "graph": {"start": "plain", "nodes": {"plain": {"title": "plain", "set": {}}}}},
        "blocks")  # fmt: skip
    context = replace(context, space=space, predictor=None, speed=None)
    history, _, _ = search(device, context, most=100)
    assert len({one.candidate.checkpointed_blocks for one in history}) > 2
    assert all(space.refusal(one.candidate) is None for one in history)


def test_the_tuner_loads_no_torch_for_it_and_optuna_only_for_a_draw():
    program = """
import sys
from autotune.search.optuna_search import OptunaSearch
from autotune.search.tpe import ObservedTrial, Parameter, draws
assert "optuna" not in sys.modules
seen = [ObservedTrial({"size": n / 8}, float(n)) for n in range(8)]
assert list(draws({"size": Parameter("share")}, seen, 1, 2))
assert "optuna" in sys.modules
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert done.stderr == "", "and nothing is said of studies and experimental arguments"
