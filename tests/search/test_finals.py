"""The finals: what is measured again, in which order, and what that decides."""

import math
import random
import re
from dataclasses import replace

import pytest

from autotune.memory.calibration import Z
from autotune.objective import Objective
from autotune.outcome import Lost, Oom
from autotune.search.drift import drift_of
from autotune.search.finals import (
    LEAST,
    MARGIN,
    MOST,
    ROUNDS,
    Rematch,
    Settled,
    after_finals,
    compared,
    next_rematch,
    pairs_of,
)
from autotune.search.selection import choose, rank
from autotune.testing.arithmetic import ok
from autotune.timing.speed_model import Expected
from autotune.trial import RematchFinished
from tests.search.test_incumbent import bounded
from tests.search.test_selection import trial

PLENTY = 1e9
"""Seconds of training: whatever may be saved is worth its rounds."""


def of(number, seconds, peak=500, **fields):
    """Return a trial whose global step of 16 micro-steps takes so long, its own steps within 1% each."""
    return trial(number, ok(peak, micro=seconds / 16, step=0.0), **fields)


def move(history, rematches, context, training=PLENTY):
    here = context() if callable(context) else context
    here = replace(here, limits=here.limits.model_copy(update={"training_time": training}))
    running = after_finals(history, rematches)
    drift = drift_of(history, rematches, here)
    return next_rematch(running, rematches, here, drift)


def again(wanted, seconds, outcome=None):
    return RematchFinished(
        number=wanted.number, round=wanted.round, finalists=wanted.finalists, seconds=1.0,
        outcome=outcome or ok(500, micro=seconds / 16, step=0.0),
    )  # fmt: skip


def played(history, context, seconds, training=PLENTY):
    """Play finals to their end; `seconds(number, index)` is what the index-th rematch of a trial takes."""
    rematches, order = [], []
    while isinstance(wanted := move(history, rematches, context, training), Rematch):
        index = sum(rematch.number == wanted.number for rematch in rematches)
        found = seconds(wanted.number, index)
        rematches.append(again(wanted, found) if isinstance(found, float) else again(wanted, 0.0, found))
        order.append(wanted.number)
        assert len(order) < 50
    return rematches, order, wanted.why


def ranked(history, rematches, context):
    here = context()
    running = after_finals(history, rematches)
    drift = drift_of(history, rematches, here)
    return rank(running, here, drift, pairs_of(running, rematches, here))


NEAR = of(1, 10.0), of(2, 10.2, checkpointing="full")


def test_what_intervals_tell_apart_is_not_measured_again(context):
    assert move((of(1, 10.0), of(2, 13.0, checkpointing="full")), (), context) == Settled("")
    assert move((of(1, 10.0),), (), context) == Settled("")
    assert move((), (), context) == Settled("")


def test_finalists_alternate_and_a_slow_machine_slows_both(context):
    # The machine gets slower all the time; in each round the second trial takes 5% less.
    def seconds(number, index):
        return (10.0 if number == 1 else 9.5) * (1 + index / 4)

    rematches, order, why = played(NEAR, context, seconds)
    assert order == [1, 2, 2, 1]
    assert [rematch.round for rematch in rematches] == [1, 1, 2, 2]
    scores = ranked(NEAR, rematches, context)
    assert choose(scores).winner.trial.number == 2
    assert choose(scores).alternatives == ()
    assert "probe 2 (bf16 + checkpointing, micro-batch 4) is 5.1% ± " in why
    assert "faster than probe 1 in 2 rounds" in why


def test_what_differs_by_less_than_the_margin_is_equal_and_the_smaller_peak_is_chosen(context):
    history = of(1, 10.0, peak=800), of(2, 10.2, checkpointing="full")
    rematches, order, why = played(history, context, lambda number, index: 10.0)
    assert len(order) <= 2 * ROUNDS
    assert "is as fast within 2% as probe " in why
    chosen = choose(ranked(history, rematches, context))
    assert (chosen.winner.trial.number, chosen.by) == (2, "memory")
    assert [score.trial.number for score in chosen.alternatives] == [1]


def test_what_rounds_do_not_tell_apart_is_said_to_be_so_when_they_are_spent(context):
    draws = {1: [10.0, 12.0, 9.0, 11.0], 2: [12.0, 10.0, 11.5, 9.0]}
    rematches, order, why = played(NEAR, context, lambda number, index: draws[number][index])
    assert order == [1, 2, 2, 1] * (ROUNDS // 2)
    assert re.search(r"could not be told apart from probe \d \(\d\.\d% ± \d+\.\d% in 4 rounds\): ", why)
    assert f"no more than {ROUNDS} rounds are made" in why
    assert len(choose(ranked(NEAR, rematches, context)).alternatives) == 1


def test_finals_take_no_longer_than_they_may_save_the_training(context):
    rounds = LEAST * 2 * 1.0  # two trials of a second each
    fastest, other = ranked(NEAR, (), context)
    spread = fastest.apart(other) / fastest.seconds / Z
    gain = Expected(other.seconds, spread).improvement(fastest.seconds)
    assert isinstance(move(NEAR, (), context, training=1.01 * rounds / gain), Rematch)
    short = move(NEAR, (), context, training=0.99 * rounds / gain)
    assert "could not be told apart from probe 2: to measure again takes about 4.00 s" in short.why
    assert "and is expected to save 3.96 s of" in short.why
    assert "of training (--training-time)" in short.why


def test_another_round_has_to_save_more_than_it_takes_too(context):
    # After two rounds that say the opposite of each other, a third takes half as long as those two.
    draws = {1: [10.0, 10.4, 10.0, 10.4], 2: [10.4, 10.0, 10.4, 10.0]}
    one, two = (again(Rematch(number, 1, (1, 2)), draws[number][0]) for number in (1, 2))
    three, four = (again(Rematch(number, 2, (2, 1)), draws[number][1]) for number in (2, 1))
    rounds = one, two, three, four
    assert isinstance(move(NEAR, rounds, context), Rematch)
    assert " in 2 rounds): to measure again takes" in move(NEAR, rounds, context, training=1.0).why
    begun = move(NEAR, (one,), context, training=1.0)
    assert begun == Rematch(2, 1, (1, 2)), "a round that was begun is ended"


def test_a_finalist_that_does_not_train_again_is_no_winner(context):
    rematches, order, why = played(
        NEAR, context, lambda number, index: Oom(phase="forward") if number == 1 else 9.0
    )
    assert order == [1, 2]
    assert [score.trial.number for score in ranked(NEAR, rematches, context)] == [2]
    assert "probe 1 ended in oom when measured again" in why


def test_a_finalist_that_is_lost_is_passed_over_with_words_and_keeps_what_its_probe_measured(context):
    gone = Lost(cause="worker", phase="forward", message="ended by SIGKILL")
    rematches, order, why = played(NEAR, context, lambda number, index: gone if number == 2 else 10.0)
    assert order == [1, 2]
    assert "probe 2 ended in lost when measured again" in why
    scores = {score.trial.number: score.seconds for score in ranked(NEAR, rematches, context)}
    assert scores[2] == pytest.approx(10.2)


def test_no_more_than_a_few_take_part_the_fastest_first(context):
    changed = (
        {},
        {"checkpointing": "full"},
        {"offload": "full"},
        {"compile": "regional"},
        {"attention": "eager"},
    )
    history = tuple(of(number, 10.3 - number / 50, **axes) for number, axes in enumerate(changed, start=1))
    wanted = move(history, (), context)
    assert wanted.finalists == (5, 4, 3)
    assert len(wanted.finalists) == MOST
    # Fewer, where two rounds of all take longer than they may save.
    found = [move(history, (), context, training=10 * 1.02**number) for number in range(400)]
    finalists = [one.finalists if isinstance(one, Rematch) else () for one in found]
    assert list(dict.fromkeys(finalists)) == [(), (5, 4), (5, 4, 3)]
    assert "could not be told apart from 4 others: " in found[0].why


def test_one_that_ended_early_is_measured_where_what_beat_it_turned_out_slower(context):
    early = bounded(2, 15.0, checkpointing="full")
    assert move((of(1, 10.0), early), (), context) == Settled("")
    slowed = of(1, 20.0)
    wanted = move((slowed, early), (), context)
    assert wanted.finalists == (1, 2)
    rematches, _, _ = played((slowed, early), context, lambda number, index: 20.0 if number == 1 else 16.0)
    assert choose(ranked((slowed, early), rematches, context)).winner.trial.number == 2


def test_where_only_what_ended_early_is_left_it_is_measured_whatever_that_takes(context):
    history = bounded(2, 30.0, checkpointing="full"), bounded(3, 15.0, offload="full")
    rematches, order, _ = played(history, context, lambda number, index: 16.0, training=0.001)
    assert order == [3]
    assert [score.trial.number for score in ranked(history, rematches, context)] == [3]


def test_other_objectives_and_predictions_have_no_finals(context):
    here = context()
    for name in ("memory", "energy"):
        goal = here.goal.model_copy(update={"objective": Objective.model_construct(name=name)})
        assert move(NEAR, (), replace(here, goal=goal)) == Settled("")


def test_what_is_decided_depends_on_what_was_recorded_alone(context):
    rematches, _, _ = played(NEAR, context, lambda number, index: 10.0 + 0.4 * number)
    for count in range(len(rematches)):
        wanted = move(NEAR, rematches[:count], context)
        assert (wanted.number, wanted.round, wanted.finalists) == (
            rematches[count].number, rematches[count].round, rematches[count].finalists,
        )  # fmt: skip


def test_the_interval_of_a_pair_narrows_with_rounds_and_takes_their_spread():
    steady = [compared([(10.0, 0.0)] * rounds, [(11.0, 0.0)] * rounds) for rounds in (1, 2, 4)]
    assert all(pair.log_speedup == pytest.approx(math.log(1.1)) for pair in steady)
    assert steady[0].half_width > steady[1].half_width > steady[2].half_width > 0.005
    uneven = compared([(10.0, 0.0), (10.0, 0.0)], [(10.0, 0.0), (12.0, 0.0)])
    assert uneven.half_width > 2 * steady[1].half_width
    unsure = compared([(10.0, 0.1), (10.0, 0.1)], [(11.0, 0.1), (11.0, 0.1)])
    assert unsure.half_width > 2 * steady[1].half_width


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.1])
def test_rounds_of_a_drifting_machine_seldom_decide_for_the_slower(noise):
    draw, wrong = random.Random(1), 0
    for _ in range(2000):
        ours, theirs, level = [], [], 1.0
        for _ in range(ROUNDS):
            level *= math.exp(draw.gauss(0, 0.2))  # of the whole machine
            ours.append((level * math.exp(draw.gauss(0, noise)), noise / 2))
            theirs.append((level * math.exp(draw.gauss(MARGIN / 4, noise)), noise / 2))
            pair = compared(ours, theirs)
            if len(ours) >= LEAST and abs(pair.log_speedup) > pair.half_width:
                wrong += pair.log_speedup < 0
                break
    assert wrong / 2000 <= 0.05


def test_trials_of_an_earlier_run_are_measured_again_for_what_a_probe_takes(context):
    taken_over = tuple(trial.model_copy(update={"seconds": 0.0}) for trial in NEAR)
    assert isinstance(move(taken_over, (), context, training=100.0), Settled)
    assert isinstance(move(taken_over, (), context, training=PLENTY), Rematch)
