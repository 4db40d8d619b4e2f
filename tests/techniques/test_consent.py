"""What changes the training is declared to do so, value by value."""

from __future__ import annotations

import pytest

from autotune.candidate import AXES, Candidate, examples
from autotune.errors import InputError
from autotune.search.shipped import default_space, load_space, shipped_spaces
from autotune.techniques.axis import CHANGES
from autotune.techniques.check import axis_of
from autotune.techniques.consent import BY_CONSENT, allowed, changing, leaves_alone

ALONE = {
    # fp32, bf16 and fp16 keep fp32 weights and state; TF32's products have more bits than bf16's
    "precision": ["fp32", "bf16", "fp16"],
    "tf32": [False, True],
    "adapters": ["none"],
    "attention": ["sdpa", "eager", "flash_attention_2", "flex_attention"],
    "checkpointing": ["none", "selective", "alternate", "full", "offloaded"],
    "checkpointed_blocks": ["all", 1],
    "sequences": ["full", "padded", "packed"],
    "num_workers": [0, 1, 2, 4, 8],
    "prefetch_factor": [2, 4],
    "pin_memory": [False, True],
    "loss": ["full", "chunked"],
    "compile": ["none", "regional"],
    "activation_memory_budget": ["none", "75%", "50%", "25%"],
    "kernels": ["torch", "liger"],
    "activation_offload": [False, True],
    "offload": ["none", "optimizer", "gradients", "full"],
    "offload_to": ["auto", "host", "disk"],
    "optimizer": ["adamw"],
    "optimizer_kernel": ["fused", "foreach"],
    "optimizer_in_backward": [False, True],  # the same updates: autotune's training does not clip
    "sharding": ["none", "ddp", "zero1", "zero2", "hsdp", "fsdp2", "zero3"],
    "engine": ["torch"],
    "tensor_parallel": [1, 2, 4, 8],
    "reduce_dtype": ["fp32"],
    "expandable_segments": [False, True],
    "max_split_size": ["none", "64MiB", "256MiB"],
    "garbage_collection_threshold": ["none", "60%", "80%"],
}
"""What leaves alone what is learned, as the appliers in `worker/techniques` were read."""
CHANGED = {
    "reduce_dtype=bf16": ("reduce_dtype", "bf16", "gradients"),
    "deepspeed": ("engine", "deepspeed", "gradients"),
    "fp8": ("precision", "fp8", "products"),
    "adamw-8bit": ("optimizer", "adamw-8bit", "optimizer state"),
    "bf16-pure": ("precision", "bf16-pure", "weights"),
    "adafactor": ("optimizer", "adafactor", "optimizer"),
    "momentum": ("optimizer", "momentum", "optimizer"),
    "sgd": ("optimizer", "sgd", "optimizer"),
    "lora": ("adapters", "lora", "what trains"),
    "qlora": ("adapters", "qlora", "what trains"),
}
"""By the name that a user types: its axis and value, and what it changes."""


@pytest.mark.parametrize("axis", AXES)
def test_every_value_of_every_axis_is_known_to_change_the_training_or_not(axis: str) -> None:
    changed = [value for name, value, _ in CHANGED.values() if name == axis]
    assert [value for value in examples(axis) if leaves_alone(axis, value)] == ALONE[axis]
    assert sorted(changed) == sorted(value for value in examples(axis) if not leaves_alone(axis, value))
    assert leaves_alone(axis, axis_of(axis).default), "a candidate that nobody chose is plain training"


def test_names_and_changes_follow_from_the_declarations_the_smallest_change_first() -> None:
    assert {one.name: (one.axis, one.value, one.change.of) for one in BY_CONSENT} == CHANGED
    assert [CHANGES.index(one.change.of) for one in BY_CONSENT] == sorted(
        CHANGES.index(change) for _, _, change in CHANGED.values()
    )


def test_a_name_is_found_as_people_spell_it() -> None:
    spelled = ["AdamW8bit", "bf16_pure", " LoRA ", "optimizer=sgd", "reduce-dtype=bf16", "lora"]
    assert [one.name for one in allowed(spelled)] == [
        "reduce_dtype=bf16", "adamw-8bit", "bf16-pure", "sgd", "lora",
    ]  # fmt: skip
    assert allowed([]) == ()


def test_all_unknown_names_are_told_at_once_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        allowed(["loar", "lora", "bf16", "adamw8"])
    assert caught.value.about == ("allow",)
    first, second, third = caught.value.problems
    assert "'loar'" in first
    assert "lora" in first.partition(";")[2]
    assert "bf16-pure" in second.partition(";")[2], "bf16 itself needs no consent"
    assert "adamw-8bit" in third.partition(";")[2]


def test_a_candidate_tells_by_what_its_training_differs() -> None:
    plain = Candidate(checkpointing="full", offload="full", loss="chunked", compile="regional")
    assert changing(plain) == ()
    other = Candidate(adapters="lora", optimizer="adamw-8bit")
    assert [one.name for one in changing(other)] == ["adamw-8bit", "lora"]


def test_no_space_that_a_run_takes_by_itself_changes_what_is_learned() -> None:
    usual = {default_space(gpus, lengths) for gpus in (1, 8) for lengths in (False, True)}
    assert usual <= set(shipped_spaces())
    for name in usual:
        space = load_space(name)
        wrong = [(one.name, name) for one in BY_CONSENT if one.value in space.axes.get(one.axis, ())]
        assert wrong == []
