"""Blocks under another loss on a stand-in for a GPU, compiled too; `test_joined_on_gpu.py` runs them alone."""

from pathlib import Path

import pytest

from autotune.worker.techniques import activation_offload
from autotune.worker.tracing.fakes.compiler import kept_programs
from autotune.worker.tracing.trace import trace
from tests.data.requests import family, request
from tests.timeline.test_joined import check

COMPILED = {"compile": "regional"}
OFFLOADED = {"activation_offload": True}
GPT2 = "gpt2", {"n_layer": 9}
LLAMA = "llama", {"num_hidden_layers": 9}


@pytest.fixture(scope="module", autouse=True)
def _sharing():
    with kept_programs():
        yield


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch):
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 8)


def of(name, changes, **fields):
    return trace(request(family(name, **changes), Path(), device="cuda:0", precision="bf16", **fields))


@pytest.mark.parametrize(
    ("model", "fields", "blocks"),
    [
        (GPT2, {}, COMPILED),
        (GPT2, OFFLOADED, {"checkpointing": "full"}),
        (GPT2, {**OFFLOADED, "offload": "full"}, {**COMPILED, "checkpointing": "full"}),
        (LLAMA, {}, {**COMPILED, "checkpointing": "full"}),
        (LLAMA, {**OFFLOADED, "offload": "full"}, {"checkpointing": "full"}),
    ],
)
def test_blocks_under_another_loss_are_the_same(model, fields, blocks):
    check(lambda **one: of(*model, **one), blocks, fields)


def test_copies_of_weights_that_compiled_blocks_keep_stay():
    """At 32 samples, unlike at 33, the rows of all weights could be a batch's."""
    compiled, plain = (of(*GPT2, **OFFLOADED, **one) for one in (COMPILED, {}))
    assert compiled.exact is None
    assert compiled.facts["blocks"] == plain.facts["blocks"]
    kept, moved = (one.allocated(1, place="host") for one in (plain, compiled))
    assert moved < 1.1 * kept


def test_a_single_sample_that_leaves_other_things_is_priced_all_the_same():
    assert of(*LLAMA, **OFFLOADED, **COMPILED).allocated(1)
