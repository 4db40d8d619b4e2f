"""A candidate's open axis: which numbers it takes, and that equal candidates have one name."""

import json

import pytest

from autotune.candidate import AXES, OPEN, Candidate, choices, examples, is_choice, listed_values
from autotune.errors import InputError
from autotune.specs import ModelFacts
from autotune.techniques.axis import Context
from autotune.techniques.check import check
from autotune.techniques.families import title
from tests.fakes.executor import FACTS


def of_so_many(blocks: int) -> ModelFacts:
    return FACTS.model_copy(update={"blocks": blocks})


def test_a_number_of_blocks_is_the_same_however_it_is_given() -> None:
    given = [Candidate(checkpointing="full", checkpointed_blocks=12),
             Candidate.model_validate({"checkpointing": "full", "checkpointed_blocks": "12"})]  # fmt: skip
    given.append(Candidate.model_validate(json.loads(given[0].model_dump_json())))
    assert len({one.key() for one in given}) == len(set(given)) == 1
    assert "checkpointing=full,checkpointed_blocks=12," in given[0].key()


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, 10_001, 10**30, "x", "\u00b2", "1" * 5000, None, [1]])
def test_what_is_no_number_of_blocks_is_refused(wrong) -> None:
    with pytest.raises(InputError) as caught:
        Candidate.load({"checkpointing": "full", "checkpointed_blocks": wrong}, "best.yaml")
    (problem,) = caught.value.problems
    assert problem.startswith("best.yaml: checkpointed_blocks: ")
    assert "is neither `all` nor a number of blocks from 1 to 10,000" in problem
    assert ("checkpointing: none" in problem) == (wrong == 0)
    assert len(problem) < 300
    assert not is_choice("checkpointed_blocks", wrong)


def test_all_blocks_and_none_of_them_have_one_name_each() -> None:
    def reasons(count: int | str, blocks: int) -> tuple[str, ...]:
        some = Candidate(checkpointing="selective", checkpointed_blocks=count)
        return check(some, Context(model=of_so_many(blocks)))

    assert reasons(11, 12) == reasons("all", 12) == ()
    (exactly,), (more,) = reasons(12, 12), reasons(13, 12)
    assert "checkpointed blocks are `all`, or a number below 12" in exactly
    assert "the model has 12 blocks, and 13 are asked for" in more
    (of_one,) = reasons(1, 1)
    assert of_one.endswith("checkpointed blocks are `all`")
    (none,) = check(Candidate(checkpointing="none", checkpointed_blocks=3))
    assert "no block is checkpointed" in none


def test_a_title_tells_how_many() -> None:
    assert (
        title(Candidate(checkpointing="full", checkpointed_blocks=12)) == "bf16 + checkpointing of 12 blocks"
    )
    one = Candidate(checkpointing="offloaded", checkpointed_blocks=1, offload_to="disk")
    assert title(one) == "bf16 + offloaded checkpointing to disk of 1 block"
    assert title(Candidate(checkpointing="full")) == "bf16 + checkpointing"


def test_an_open_axis_has_named_values_and_a_number_for_an_example() -> None:
    assert choices("checkpointed_blocks") == ("all",)
    assert examples("checkpointed_blocks") == ("all", 1)
    assert listed_values("checkpointed_blocks") == "all, a number from 1 to 10,000"
    assert all(is_choice(axis, value) for axis in AXES for value in examples(axis))
    assert [axis for axis in AXES if examples(axis) != choices(axis)] == list(OPEN)
