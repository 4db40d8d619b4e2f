"""Gradients that leave a GPU, traced through few blocks and composed; `test_offloaded_gradients.py` runs them alone."""

from pathlib import Path

import pytest

from autotune.timeline.composed import with_optimizer
from autotune.worker.tracing.trace import trace
from tests.data.requests import family, request
from tests.memory.test_short_traces import compare, ran
from tests.timeline.test_composed import said

BLOCKS = 13
DEPTH = {"gpt2": "n_layer", "llama": "num_hidden_layers"}
OFFLOADED = [
    {"offload": "gradients", "optimizer_kernel": "foreach"}, {"offload": "gradients", "offload_to": "disk"},
    {"offload": "full", "checkpointing": "full"}, {"offload": "full", "activation_offload": True},
]  # fmt: skip
LATE = [{"activation_offload": True, "checkpointing": "full"}, {"checkpointing": "offloaded"}]
MASKED = [
    {"activation_offload": True, "attention": "eager", **blocks}
    for blocks in ({"checkpointing": "full"}, {"compile": "regional"})
]


def model(name):
    return family(name, **{DEPTH[name]: BLOCKS})


def of(name, **fields):
    return trace(request(model(name), Path(), device="cuda:0", **fields))


@pytest.mark.parametrize("fields", OFFLOADED, ids=lambda fields: "-".join(map(str, fields.values())))
def test_offloaded_gradients_are_the_same_of_few_blocks(fields):
    _, short = compare(model("llama"), device="cuda:0", **fields)
    kept = 4 + (fields["offload"] == "full") + 2 * fields.get("activation_offload", False)
    assert ran(short) == f"{kept} of {BLOCKS}"


@pytest.mark.parametrize("fields", LATE, ids=lambda fields: "-".join(map(str, fields.values())))
def test_what_leaves_two_blocks_late_is_the_same_of_few(fields):
    long = family("llama", num_hidden_layers=BLOCKS, max_position_embeddings=1024)
    _, short = compare(long, device="cuda:0", seq_len=1024, **fields)  # what is smaller does not leave
    assert ran(short) == f"8 of {BLOCKS}"


@pytest.mark.parametrize("fields", MASKED, ids=lambda fields: "-".join(map(str, fields.values())))
def test_a_mask_that_all_blocks_save_is_the_same_of_few(fields):
    """It leaves once, beside the first block's input, and comes back once, for the last block."""
    long = family("gpt2", n_layer=BLOCKS, n_positions=1024)
    _, short = compare(long, device="cuda:0", seq_len=1024, **fields)
    kept = 9 if "checkpointing" in fields else 7  # what it keeps beside takes the place of what left
    assert ran(short) == f"{kept} of {BLOCKS}"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "passes",
    [{"checkpointing": "full", "loss": "chunked"}, {"attention": "eager", "activation_offload": True}],
)
def test_passes_whose_gradients_leave_are_composed_of_those_whose_gradients_stay(name, passes):
    leaving = {"offload": "gradients", "optimizer_kernel": "foreach"}
    expected = of(name, **passes, **leaving)
    candidate = request(model(name), Path(), **passes, **leaving).candidate
    composed = with_optimizer(candidate, of(name, **passes), of(name), of(name, **leaving))
    assert said(composed) == said(expected)
    assert composed.facts["optimizer_of"]


def test_compiled_passes_that_hold_for_one_micro_batch_are_composed():
    """What a block saves of its weights leaves the device where their rows can be divided by the micro-batch."""
    wide = family("llama", num_hidden_layers=BLOCKS, hidden_size=1024)
    passes = {"compile": "regional", "activation_offload": True}
    leaving = {"offload": "gradients", "optimizer_kernel": "foreach"}
    own, plain, donor, expected = (
        trace(request(wide, Path(), device="cuda:0", **fields))
        for fields in (passes, {}, leaving, {**passes, **leaving})
    )
    candidate = request(wide, Path(), **passes, **leaving).candidate
    composed = with_optimizer(candidate, own, plain, donor)
    assert own.exact == composed.exact == 1
    assert said(composed, (1,)) == said(expected, (1,))


def test_gradients_that_do_not_leave_as_they_arrive_are_not_composed():
    leaving = {"offload": "gradients"}
    candidate = request(model("gpt2"), Path(), **leaving).candidate
    plain, donor = of("gpt2"), of("gpt2", **leaving)
    assert with_optimizer(candidate, plain, plain, donor) is not None
    assert with_optimizer(candidate, plain, plain, of("gpt2", **leaving, loss="chunked")) is None
