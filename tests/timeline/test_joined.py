"""The blocks of one timeline with the loss of another are what a trace of both together gives."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.timeline.joined import joined
from autotune.worker.techniques import activation_offload
from autotune.worker.tracing.trace import trace
from tests.data.requests import family, request
from tests.timeline.test_composed import said

TIED = {"tie_word_embeddings": True}
CHUNKED = {"loss": "chunked"}


def traced(name, ranks, changes, **fields):
    """Return the timeline of a tiny model."""
    asked = request(family(name, **changes), Path(), precision="bf16", **fields)
    return trace(asked.model_copy(update={"world_size": ranks}))


def check(of, blocks, fields):
    """Compare what is put together with its own trace, all of it, and return it."""
    common, rest, other, own = (of(**fields, **one) for one in ({}, CHUNKED, blocks, {**CHUNKED, **blocks}))
    candidate = Candidate(precision="bf16", **{**fields, **CHUNKED, **blocks})
    found = joined(candidate, common, rest, other)
    assert found is not None
    assert said(found) == said(own)
    assert said(found) != said(other)
    assert found.facts["rung"] == own.facts["rung"]
    assert found.blocks == replace(own.blocks, micro=found.blocks.micro, single=found.blocks.single)
    return found, own


@pytest.mark.parametrize(
    ("name", "changes", "fields", "checkpointing"),
    [
        ("gpt2", {"n_layer": 9}, {}, "full"),
        ("gpt2", {}, {"sharding": "ddp"}, "selective"),
        ("gpt2", {}, {"sharding": "zero2"}, "full"),
        ("gpt2", {}, {"activation_offload": True, "offload": "optimizer"}, "selective"),
        ("llama", {}, {}, "full"),
        ("llama", TIED, {}, "selective"),
        ("llama", {"num_hidden_layers": 9}, {"sharding": "fsdp2"}, "full"),
        ("llama", TIED, {"activation_offload": True}, "full"),
        ("qwen3", {}, {"attention": "eager"}, "full"),
    ],
)
def test_blocks_under_another_loss_are_the_same(name, changes, fields, checkpointing, monkeypatch):
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 10)
    ranks = 2 if "sharding" in fields else 1
    check(lambda **one: traced(name, ranks, changes, **one), {"checkpointing": checkpointing}, fields)


def test_what_does_not_fit_is_not_joined():
    common, rest, blocks = (traced("llama", 1, {}, **one) for one in ({}, CHUNKED, {"checkpointing": "full"}))
    assert joined(Candidate(), common, rest, blocks) is not None
    assert joined(Candidate(), common, rest, replace(blocks, exact=4)) is None
    assert joined(Candidate(), common, rest, replace(blocks, blocks=None)) is None
    assert joined(Candidate(), blocks, rest, blocks) is None, "the blocks of `rest` are others"
    assert joined(Candidate(), common, rest, traced("llama", 1, {}, **CHUNKED, checkpointing="full")) is None
    assert joined(Candidate(), common, rest, traced("llama", 1, {"num_hidden_layers": 3})) is None
    larger = traced("llama", 1, {"vocab_size": 1024}, checkpointing="full")
    assert joined(Candidate(), common, rest, larger) is None, "another head"
    lora = traced("llama", 1, {}, adapters="lora", checkpointing="full")
    assert joined(Candidate(), common, rest, lora) is None, "fewer gradients"
