import pytest

from autotune.candidate import Candidate
from autotune.outcome import Oom
from autotune.selection import flops_per_token, mfu, missing, rank, score
from autotune.specs import ModelFacts
from autotune.trial import Trial
from tests.unit.simulation import ok


def trial(number, outcome, micro_batch=4, **fields):
    candidate = Candidate(micro_batch=micro_batch, **fields)
    return Trial(number=number, candidate=candidate, node="grow", why="", outcome=outcome, seconds=1.0)


def test_a_global_step_is_composed_of_its_parts(scope):
    result = score(trial(1, ok(500, micro=0.5, step=0.25)), scope())
    assert result.accumulation.steps == 16
    assert result.seconds == pytest.approx(16 * 0.5 + 0.25)
    assert result.tokens_per_second == pytest.approx(6400 / 8.25)
    assert result.interval == pytest.approx(result.tokens_per_second * (16 * 0.005) / 8.25)


def test_a_slow_optimizer_step_weighs_less_the_more_is_accumulated(scope):
    slow_step = trial(1, ok(500, micro=0.1, step=2.0))
    quick_step = trial(2, ok(500, micro=0.11, step=0.0), micro_batch=4, checkpointing="full")
    assert rank((slow_step, quick_step), scope(target="6400"))[0].trial is quick_step
    assert rank((slow_step, quick_step), scope(target="640000"))[0].trial is slow_step


def test_trials_without_headroom_do_not_compete(scope):
    fast, safe = trial(1, ok(960, micro=0.1)), trial(2, ok(900, micro=0.2), micro_batch=2)
    assert [s.trial.number for s in rank((fast, safe), scope(headroom=0.05))] == [2]
    assert [s.trial.number for s in rank((fast, safe), scope(headroom=0.0))] == [1, 2]


def test_equal_speed_goes_to_the_smaller_peak(scope):
    assert [s.trial.number for s in rank((trial(1, ok(900)), trial(2, ok(500))), scope())] == [2, 1]


def test_devices_that_share_a_model_take_the_same_samples(scope):
    """On 8 devices, in fours: two take samples of their own, so the same global batch takes four times the steps."""
    wide = scope(gpus=8)
    apart, together = (
        score(trial(1, ok(500), sharding="fsdp2", tensor_parallel=cut), wide) for cut in (1, 4)
    )
    assert apart.accumulation.equation() == "6,400 = 400 x 8 x 2"
    assert together.accumulation.equation() == "6,400 = 400 x 2 x 8"
    assert wide.of_rung(together.trial.candidate).limit == 4 * wide.limit
    assert together.tokens_per_second == pytest.approx(6400 / together.seconds)


def test_what_is_missing_is_told_from_the_last_rung(scope):
    history = (
        trial(1, Oom(phase="build", requested=900, free=100)),
        trial(2, Oom(phase="backward", requested=150, free=100)),
    )
    assert missing(history, scope())[1] == 50
    assert missing(history, scope(headroom=0.05))[1] == 100
    assert missing((trial(1, ok(980)),), scope(headroom=0.05))[1] == 30
    assert missing((), scope()) is None


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


def test_tokens_beyond_the_target_do_not_make_a_candidate_faster(scope):
    # 62 samples twice are 124 for a target of 63: more tokens a second, but a slower step than 32 twice.
    overshooting, balanced = trial(1, ok(500, micro=0.6), 62), trial(2, ok(400, micro=0.4), 32)
    assert (
        score(overshooting, scope(target="6300")).tokens_per_second
        > score(balanced, scope(target="6300")).tokens_per_second
    )
    assert rank((overshooting, balanced), scope(target="6300"))[0].trial is balanced
