"""Passes that are traced on a model that served others; `test_shared_models.py` runs them alone."""

from pathlib import Path

import pytest
from torch._dynamo.utils import counters

from autotune.worker.build.shared_model import SharedModel
from autotune.worker.tracing import shared_training
from autotune.worker.tracing.fakes.compiler import kept_programs
from autotune.worker.tracing.shared_training import shared_trainings
from autotune.worker.tracing.trace import trace, trace_alike
from tests.data.requests import family, request

BLOCKS = 11
ON_ONE_MODEL = [
    {"activation_offload": True}, {"checkpointing": "full", "loss": "chunked"}, {"loss": "chunked"},
]  # fmt: skip


def of(ranks=1, **fields):
    made = request(family("gpt2", n_layer=BLOCKS), Path(), device="cuda:0", seq_len=64, **fields)
    return made.model_copy(update={"world_size": ranks})


def taken(timeline):
    """Return what is allocated and computed at some micro-batches, and where."""
    work = timeline.work
    return [
        (timeline.peak(size), timeline.allocated(size, True), sorted(work.of(phase, size)))
        for size in (1, 2, 40)
        for phase in ("forward", "backward", "optimizer")
    ]


@pytest.mark.parametrize(("ranks", "where"), [(1, {"attention": "eager"}), (8, {"sharding": "zero2"})])
def test_passes_on_one_model_are_those_on_a_model_of_their_own(ranks, where, monkeypatch):
    built = []
    monkeypatch.setattr(
        shared_training, "SharedModel", lambda asked: built.append(asked) or SharedModel(asked)
    )
    donor = trace(of(ranks, **where))
    with shared_trainings():
        shared = []
        for fields in ON_ONE_MODEL:
            asked = of(ranks, **where, **fields)
            shared.append(trace_alike(asked, (), donor=donor)[asked.candidate])
    assert len(built) == 1
    for fields, ours in zip(ON_ONE_MODEL, shared, strict=True):
        own = trace(of(ranks, **where, **fields))
        assert ours.facts["blocks"] == own.facts["blocks"]
        assert not str(ours.facts["blocks"]).startswith("all")
        assert taken(ours) == taken(own)


@pytest.mark.parametrize(("ranks", "where", "models"), [(1, {}, 1), (8, {"sharding": "zero2"}, 2)])
def test_few_blocks_stand_for_all_also_behind_passes_through_fewer(ranks, where, models, monkeypatch):
    """FSDP2 prepares blocks in a first pass: those that it leaves out would later be unlike the others."""
    built = []
    monkeypatch.setattr(
        shared_training, "SharedModel", lambda asked: built.append(asked) or SharedModel(asked)
    )
    donor = trace(of(ranks, **where))
    with shared_trainings():
        for fields in reversed(ON_ONE_MODEL):
            asked = of(ranks, **where, **fields)
            shared = trace_alike(asked, (), donor=donor)[asked.candidate]
    own = trace(asked)
    assert len(built) == models
    assert shared.facts["blocks"] == own.facts["blocks"]
    assert not str(own.facts["blocks"]).startswith("all")
    assert taken(shared) == taken(own)


def test_what_goes_wrong_on_a_model_ends_it_for_others(monkeypatch):
    donor = trace(of())
    built, dressed = [], SharedModel.training
    monkeypatch.setattr(
        shared_training, "SharedModel", lambda asked: built.append(asked) or SharedModel(asked)
    )

    def training(self, candidate):
        if candidate.loss == "chunked" and len(built) == 1:
            raise ZeroDivisionError
        return dressed(self, candidate)

    monkeypatch.setattr(SharedModel, "training", training)
    with shared_trainings():
        for loss_of in ("full", "chunked"):
            asked = of(checkpointing="full", loss=loss_of)
            found = trace_alike(asked, (), donor=donor)[asked.candidate]
            assert found.facts["rung"] == asked.candidate.rung().key()
    assert len(built) == 2


def test_a_block_that_was_compiled_is_not_compiled_again_where_it_is_sharded_already():
    fields = {"compile": "regional", "offload": "full"}
    with kept_programs(), shared_trainings():
        donor = trace(of(**fields))
        assert counters["stats"]["unique_graphs"]
        asked = of(**fields, checkpointing="full")
        trace_alike(asked, (), donor=donor)
        assert not counters["stats"]["unique_graphs"]


def test_a_block_under_ddp_is_compiled_as_on_one_device():
    """torch would cut it where a bucket of DDP's 25 MiB is full, and this block fills two."""
    wide = family("gpt2", n_layer=2, n_embd=1024, n_head=16)
    alone, replicated = (
        trace(
            request(
                wide, Path(), device="cuda:0", seq_len=64, compile="regional", sharding=sharding
            ).model_copy(update={"world_size": ranks})
        ).work
        for sharding, ranks in (("none", 1), ("ddp", 8))
    )
    for phase in ("forward", "backward"):
        of_block, cut = (
            [(one.name, count) for one, count in work.of(phase, 2) if one.name.startswith("triton")]
            for work in (alone, replicated)
        )
        assert of_block
        assert sorted(cut) == sorted(of_block)
