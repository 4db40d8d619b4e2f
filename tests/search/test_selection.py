import math

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Breakdown, Drift, Oom, Sample, StepTiming
from autotune.prediction import Prediction
from autotune.search.comparison import Paired
from autotune.search.selection import choose, fastest, flops_per_token, mfu, missing, rank, score
from autotune.specs import ModelFacts
from autotune.testing.arithmetic import ok
from autotune.trial import Trial


def trial(number, outcome, micro_batch=4, **fields):
    candidate = Candidate(micro_batch=micro_batch, **fields)
    return Trial(number=number, candidate=candidate, node="grow", why="", outcome=outcome, seconds=1.0)


def test_a_global_step_is_composed_of_its_parts(context):
    result = score(trial(1, ok(500, micro=0.5, step=0.25)), context())
    assert result.accumulation.steps == 16
    assert result.seconds == pytest.approx(16 * 0.5 + 0.25)
    assert result.tokens_per_second == pytest.approx(6400 / 8.25)
    assert result.interval == pytest.approx(result.tokens_per_second * (16 * 0.005) / 8.25)
    assert result.half_width == pytest.approx(16 * 0.005)
    drift = Drift(share=0.03, floor=0.02, halves=1, repeats=0)
    wider = score(trial(1, ok(500, micro=0.5, step=0.25)), context(), drift)
    assert wider.half_width == pytest.approx(math.hypot(16 * 0.005, 0.03 * 8.25))


def test_a_slow_optimizer_step_weighs_less_the_more_is_accumulated(context):
    slow_step = trial(1, ok(500, micro=0.1, step=2.0))
    quick_step = trial(2, ok(500, micro=0.11, step=0.0), micro_batch=4, checkpointing="full")
    assert rank((slow_step, quick_step), context(target="6400"))[0].trial is quick_step
    assert rank((slow_step, quick_step), context(target="640000"))[0].trial is slow_step


def test_trials_without_headroom_do_not_compete(context):
    fast, safe = trial(1, ok(960, micro=0.1)), trial(2, ok(900, micro=0.2), micro_batch=2)
    assert [s.trial.number for s in rank((fast, safe), context(headroom=0.05))] == [2]
    assert [s.trial.number for s in rank((fast, safe), context(headroom=0.0))] == [1, 2]


def test_equal_speed_goes_to_the_smaller_peak(context):
    assert [s.trial.number for s in rank((trial(1, ok(900)), trial(2, ok(500))), context())] == [2, 1]


def measured(number, seconds, half_width, peak=500, roofline=None, **fields):
    """Return a trial of 16 micro-steps with these seconds and interval (one half-width) of a whole global step."""
    sample = Sample(mean=seconds / 16, half_width=half_width / 16, count=5)
    nothing = Sample(mean=0.0, half_width=0.0, count=5)
    outcome = ok(peak).model_copy(
        update={"timing": StepTiming(micro_step=sample, last_micro_step=sample, optimizer_step=nothing)}
    )
    made = trial(number, outcome, **fields)
    if roofline is None:
        return made
    exact = Sample(mean=roofline / 16, half_width=None, count=0)
    timing = StepTiming(micro_step=exact, last_micro_step=exact, optimizer_step=nothing)
    prediction = Prediction(
        allocated=1, reserved=1, peak=1, low=1, high=1, breakdown=outcome.memory.breakdown, roofline=timing
    )
    return made.model_copy(update={"prediction": prediction})


NONE = Drift(share=0.0, floor=0.0, halves=0, repeats=0)


def numbers(scores):
    return [entry.trial.number for entry in scores]


def test_what_intervals_do_not_decide_is_no_win_and_the_smaller_peak_is_chosen(context):
    # 12,505 ± 9,169 tokens a second wins over nothing.
    wild, steady = measured(1, 10.0, 7.3, peak=900), measured(2, 10.4, 0.1, peak=600, micro_batch=4)
    choice = choose(rank((wild, steady), context(), NONE))
    assert choice.winner.trial.number == 2
    assert choice.by == "memory"
    assert numbers(choice.alternatives) == [1]
    assert choose(rank((measured(1, 10.0, 0.1), steady), context(), NONE)).by == "speed"


def test_what_measured_much_slower_is_not_chosen_for_its_peak_or_prediction(context):
    slow = measured(1, 20.0, 19.0, peak=100, roofline=5.0)
    fast = measured(2, 10.0, 9.0, peak=900, roofline=9.0)
    close = measured(3, 10.5, 9.0, peak=600, roofline=9.5)
    choice = choose(rank((slow, fast), context(), NONE))
    assert (choice.winner.trial.number, choice.by) == (2, "speed")
    assert numbers(choice.alternatives) == [1]
    assert numbers(rank((slow, fast, close), context(), NONE))[-1] == 1


def test_drift_between_probes_can_make_a_tie_of_what_their_steps_tell_apart(context):
    one, other = measured(1, 10.0, 0.01, peak=900), measured(2, 10.4, 0.01, peak=600)
    assert choose(rank((one, other), context(), NONE)).winner.trial.number == 1
    drift = Drift(share=0.05, floor=0.02, halves=3, repeats=0)
    assert choose(rank((one, other), context(), drift)).winner.trial.number == 2


def test_the_smaller_predicted_time_decides_where_all_have_one(context):
    small = measured(1, 10.0, 1.0, peak=100, roofline=9.5)
    quick = measured(2, 10.3, 1.0, peak=900, roofline=7.5, checkpointing="full")
    choice = choose(rank((small, quick), context(), NONE))
    assert (choice.winner.trial.number, choice.by) == (2, "prediction")
    unpredicted = measured(2, 10.3, 1.0, peak=900, checkpointing="full")
    assert choose(rank((small, unpredicted), context(), NONE)).by == "memory"


def rounds(shares):
    """Return how trials compared in rounds, by their numbers, from by what share the first of a pair was faster."""
    found = {}
    for (one, other), share in shares.items():
        found.setdefault(one, {})[other] = Paired(share, 0.05, rounds=4)
        found.setdefault(other, {})[one] = Paired(-share, 0.05, rounds=4)
    return found


def test_finals_decide_what_they_do_not_tell_apart_before_any_prediction(context):
    small = measured(1, 10.0, 1.0, peak=100, roofline=9.5)
    quick = measured(2, 10.3, 1.0, peak=900, roofline=7.5, checkpointing="full")
    third = measured(3, 10.2, 1.0, peak=90, roofline=7.0, loss="chunked")
    ranked = rank((small, quick), context(), NONE, rounds({(1, 2): 0.03}))
    assert (choose(ranked).winner.trial.number, choose(ranked).by) == (1, "finals")
    ranked = rank((small, quick), context(), NONE, rounds({(1, 2): -0.01}))
    assert (choose(ranked).winner.trial.number, choose(ranked).by) == (2, "finals")
    every = rounds({(1, 2): 0.01, (1, 3): -0.02, (2, 3): -0.03})
    assert numbers(rank((small, quick, third), context(), NONE, every)) == [3, 1, 2]
    equal = {1: {2: Paired(0.005, 0.01, rounds=4)}, 2: {1: Paired(-0.005, 0.01, rounds=4)}}
    assert choose(rank((small, quick), context(), NONE, equal)).by == "prediction"
    # One of them was in no round: nothing is known of it but its prediction.
    ranked = rank((small, quick, third), context(), NONE, rounds({(1, 2): 0.03}))
    assert (choose(ranked).winner.trial.number, choose(ranked).by) == (3, "prediction")


def test_what_anything_is_known_to_be_faster_than_is_no_alternative(context):
    # The third is within the first one's interval, but the second is faster than it for sure.
    trials = (
        measured(1, 10.0, 5.0, peak=900),
        measured(2, 10.2, 0.1, peak=800),
        measured(3, 13.0, 0.1, peak=100),
    )
    ranked = rank(trials, context(), NONE)
    assert numbers(ranked) == [2, 1, 3]
    assert numbers(fastest(ranked)) == [2, 1]


def test_among_what_speed_does_not_tell_apart_a_proven_one_is_the_winner(context):
    ranked = rank((measured(1, 10.0, 1.0, peak=900), measured(2, 10.1, 1.0, peak=600)), context(), NONE)
    assert (choose(ranked).winner.trial.number, choose(ranked, proven=[1]).winner.trial.number) == (2, 1)
    assert choose(ranked, proven=[1]).by == "proof"
    slow = rank((measured(1, 20.0, 1.0), measured(2, 10.1, 1.0)), context(), NONE)
    assert choose(slow, proven=[1]).winner.trial.number == 2


def test_between_predictions_what_is_predicted_decides(context):
    def predicted(number, seconds, peak):
        sample = Sample(mean=seconds / 16, half_width=seconds / 32, count=0)
        timing = StepTiming(micro_step=sample, last_micro_step=sample, optimizer_step=sample)
        return trial(number, ok(peak).model_copy(update={"timing": timing}))

    choice = choose(rank((predicted(1, 10.0, 900), predicted(2, 10.1, 100)), context()))
    assert (choice.winner.trial.number, choice.by, choice.alternatives) == (1, "speed", ())


def test_devices_that_share_a_model_take_the_same_samples(context):
    """On 8 devices, in fours: two take samples of their own, so the same global batch takes four times the steps."""
    wide = context(gpus=8)
    apart, together = (
        score(trial(1, ok(500), sharding="fsdp2", tensor_parallel=cut), wide) for cut in (1, 4)
    )
    assert apart.accumulation.equation() == "6,400 = 400 x 8 x 2"
    assert together.accumulation.equation() == "6,400 = 400 x 2 x 8"
    assert wide.batches(together.trial.candidate).limit == 4 * wide.batches(apart.trial.candidate).limit
    assert together.tokens_per_second == pytest.approx(6400 / together.seconds)


def test_what_is_missing_is_told_from_the_last_rung(context):
    history = (
        trial(1, Oom(phase="build", requested=900, free=100)),
        trial(2, Oom(phase="backward", requested=150, free=100)),
    )
    assert missing(history, context())[1] == 50
    assert missing(history, context(headroom=0.05))[1] == 100
    assert missing((trial(1, ok(980)),), context(headroom=0.05))[1] == 30
    assert missing((), context()) is None


def facts(**changes):
    fields = {
        "task": "causal-lm", "model_class": "MPT", "parameters": 0, "trainable_parameters": 0,
        "active_parameters": 0, "layers": 0, "hidden": 0, "block_class": None, "blocks": 0,
        "tokens_per_sample": 2048, "torch_version": "", "transformers_version": "",
    }  # fmt: skip
    return ModelFacts(**{**fields, **changes})


def test_mfu_reproduces_a_published_table():
    # MosaicML llm-foundry, H100 80GB BF16: MPT-70b on 256 GPUs, 1035 tokens/s/GPU, 42.42 % MFU.
    model = facts(active_parameters=64_862_437_376, layers=80, hidden=8192)
    assert mfu(1035 * 256, model, 2048, 989.4e12, 256) == pytest.approx(0.4242, rel=0.003)


def test_the_formula_counts_attention_apart():
    assert flops_per_token(facts(active_parameters=10), 100) == 60
    assert flops_per_token(facts(active_parameters=10, layers=2, hidden=8), 100) == 60 + 12 * 2 * 8 * 100


def test_tokens_beyond_the_target_do_not_make_a_candidate_faster(context):
    # 62 samples twice are 124 for a target of 63: more tokens a second, but a slower step than 32 twice.
    overshooting, balanced = trial(1, ok(500, micro=0.6), 62), trial(2, ok(400, micro=0.4), 32)
    assert (
        score(overshooting, context(target="6300")).tokens_per_second
        > score(balanced, context(target="6300")).tokens_per_second
    )
    assert rank((overshooting, balanced), context(target="6300"))[0].trial is balanced


def test_the_nearest_to_fitting_is_what_is_predicted_to_take_least(context):
    def foreseen(number, peak):
        breakdown = Breakdown(parameters=0, gradients=0, optimizer_state=0, activations=peak, other=0)
        prediction = Prediction(
            allocated=peak, reserved=peak, peak=peak, low=peak, high=peak, breakdown=breakdown
        )
        refused = trial(number, Oom(phase="forward", requested=number * 10, free=0))
        return refused.model_copy(update={"prediction": prediction})

    history = foreseen(1, 3000), foreseen(2, 1100), foreseen(3, 2000)
    assert missing(history, context()) == (history[1], 20)
    unforeseen = trial(4, Oom(phase="forward", requested=5, free=0))
    assert missing((*history, unforeseen), context())[0] == unforeseen
