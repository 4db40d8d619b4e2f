"""What the techniques exclude of each other: every rule names it, and nothing else is refused."""

from itertools import combinations

import pytest

from autotune.candidate import AXES, Candidate, choices, examples
from autotune.techniques.check import RULES, check

CHOSEN = [
    (axis, value)
    for axis in AXES
    for value in examples(axis)
    if value != Candidate.model_fields[axis].default
]
PAIRS = [
    dict(pair)
    for pair in combinations(CHOSEN, 2)
    if pair[0][0] != pair[1][0] and "auto" not in (pair[0][1], pair[1][1])
]


def test_rules_name_axes_and_values_that_there_are():
    for one in RULES:
        for name, values in [*one.rule.forbid.items(), *one.rule.where.items()]:
            assert name != one.axis
            assert values
            assert set(values) <= set(choices(name)), (one.axis, name)


def test_a_pair_is_refused_for_one_reason():
    """Two rules that refuse the same pair say the same twice, or one of them speaks of something else."""
    twice = {}
    for pair in PAIRS:
        each = {reason for axis, value in pair.items() for reason in check(Candidate(**{axis: value}))}
        if len(of_both := set(check(Candidate(**pair))) - each) > 1:
            twice[tuple(pair.items())] = of_both
    assert not twice


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpointing": "offloaded", "kernels": "liger"},
        {"checkpointing": "offloaded", "compile": "regional"},
        {"checkpointing": "offloaded", "tensor_parallel": 2},
        {"checkpointing": "offloaded", "offload_to": "disk"},
        {"checkpointing": "offloaded", "checkpointed_blocks": 2},
        {"checkpointing": "full", "checkpointed_blocks": 2, "compile": "regional", "sharding": "fsdp2"},
        {"checkpointing": "selective", "checkpointed_blocks": 2, "tensor_parallel": 2},
        {"checkpointing": "offloaded", "engine": "deepspeed", "sharding": "zero3"},
        {"adapters": "lora", "sharding": "fsdp2"},
        {"adapters": "lora", "engine": "deepspeed", "sharding": "zero3"},
        {"activation_offload": True, "engine": "deepspeed", "sharding": "zero3"},
        {"activation_offload": True, "offload_to": "disk", "engine": "deepspeed", "sharding": "zero3"},
        {"loss": "chunked", "engine": "deepspeed", "sharding": "zero2"},
        {"compile": "regional", "sharding": "fsdp2"},
        {"compile": "regional", "sharding": "ddp"},
        {"compile": "regional", "offload": "full"},
    ],
    ids=str,
)
def test_what_trains_and_computes_the_same_is_not_refused(fields):
    """Each is trained in tests/numerics, but those that need a GPU."""
    assert check(Candidate(**fields)) == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"checkpointing": "offloaded", "activation_offload": True}, "full checkpointing is the same"),
        ({"checkpointing": "alternate", "kernels": "liger"}, "rotate them twice"),
        ({"precision": "fp16", "offload": "gradients"}, "gradients elsewhere"),
        ({"compile": "regional", "tensor_parallel": 2}, "stops at the eighth"),
        ({"compile": "regional", "sharding": "zero3", "engine": "deepspeed"}, "the layers inside a block"),
        ({"precision": "fp8", "sharding": "zero3", "engine": "deepspeed"}, "casts the parameters"),
        (
            {
                "checkpointing": "full",
                "checkpointed_blocks": 2,
                "compile": "regional",
                "activation_memory_budget": "50%",
            },
            "a trace does not tell",
        ),
        ({"checkpointed_blocks": 2}, "no block is checkpointed"),
    ],
    ids=str,
)
def test_what_is_refused_is_refused_for_what_is_so(fields, words):
    (reason,) = check(Candidate(**fields))
    assert words in reason
