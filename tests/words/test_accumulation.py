import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.accumulation import Accumulation, accumulate, is_balanced, largest_micro_batch
from autotune.errors import InputError


def test_four_million_tokens_on_eight_devices():
    result = accumulate(4_000_000, micro_batch=4, tokens_per_sample=1000, world_size=8)
    assert result.steps == 125
    assert result.difference == 0
    assert result.equation() == "4,000,000 = 4,000 x 8 x 125"


def test_a_batch_that_does_not_divide_is_rounded_up_and_said():
    result = accumulate(64_000, micro_batch=6, tokens_per_sample=256)
    assert (result.steps, result.effective, result.difference) == (42, 64_512, 512)


def test_exact_refuses_and_names_the_nearest():
    with pytest.raises(InputError, match=r"64,512.*Drop --exact"):
        accumulate(64_000, micro_batch=6, tokens_per_sample=256, exact=True)


def test_a_target_below_one_sample_is_impossible():
    with pytest.raises(InputError, match="smaller than one sequence"):
        largest_micro_batch(100, tokens_per_sample=256)


def test_computed_amounts_are_written_and_checked_on_load():
    result = accumulate(64_000, micro_batch=6, tokens_per_sample=256)
    assert result.model_dump()["effective"] == 64_512


@given(
    target=st.integers(1, 10**8),
    micro=st.integers(1, 512),
    tokens=st.integers(1, 8192),
    world=st.integers(1, 64),
)
def test_the_effective_batch_is_the_nearest_at_or_above(target, micro, tokens, world):
    result: Accumulation = accumulate(target, micro, tokens, world)
    step = micro * tokens * world
    assert result.effective >= target
    assert result.effective - step < target or result.steps == 1
    assert result.effective == step * result.steps


@given(target=st.integers(100, 10**6), micro=st.integers(1, 512))
def test_a_balanced_micro_batch_is_the_smallest_of_its_number_of_steps(target, micro):
    steps = accumulate(target, micro, 100).steps
    smaller = micro == 1 or accumulate(target, micro - 1, 100).steps > steps
    assert is_balanced(target, micro, 100) == smaller


def test_the_largest_micro_batch_makes_up_the_target_in_one_step():
    assert largest_micro_batch(16_000, 256) == 63
    assert largest_micro_batch(16_384, 256, exact=True) == 64
    with pytest.raises(InputError) as caught:
        largest_micro_batch(16_000, 256, exact=True)
    assert caught.value.about == ("target_global_batch",)
