import pytest

from autotune.errors import InputError
from autotune.search.micro_batches import MicroBatches


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("target", "tokens", "ranks"), [(63, 1, 1), (1000, 7, 1), (4800, 8, 3), (10, 10, 1)])
def test_what_is_useful_is_found_without_asking_each(target, tokens, ranks, exact):
    target -= target % (tokens * ranks) if exact else 0
    batches = MicroBatches(target, tokens, ranks, exact)
    asked = [size for size in range(1, batches.limit + 1) if batches.is_useful(size)]
    assert list(batches.useful) == asked
    for low in range(batches.limit + 1):
        assert batches.above(low) == next((size for size in asked if size > low), None)
        assert batches.up_to(low, low + 5) == max((s for s in asked if low < s <= low + 5), default=None)
    assert [batches.steps(size) for size in asked] == [batches.accumulation(size).steps for size in asked]


def test_one_between_is_near_what_is_wanted_and_smaller_where_it_can_be():
    batches = MicroBatches(63, 1, 1)
    assert batches.useful == (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 21, 32, 63)
    assert batches.between(8, 12, 21) == 11
    assert batches.between(8, 12, 21, frozenset({9, 11})) == 13
    assert batches.between(21, 30, 32) is None


@pytest.mark.parametrize(("target", "exact"), [(62, False), (100, True)])
def test_rows_of_which_none_makes_up_the_global_batch_have_no_useful_micro_batch(target, exact):
    batches = MicroBatches(target, tokens_per_sample=31, ranks=1 if exact else 8, exact=exact)
    assert batches.limit == 0
    assert batches.useful == ()
    assert batches.above(0) is batches.up_to(0, 100) is None
    with pytest.raises(InputError):
        batches.check()
