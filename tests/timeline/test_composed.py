"""The optimizer of one timeline under the passes of another is what a trace of both together gives."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.candidate import Candidate, alike
from autotune.timeline.composed import with_optimizer
from autotune.worker.tracing import trace as trace_module
from autotune.worker.tracing.step_tracer import StepTracer
from autotune.worker.tracing.trace import trace, trace_alike
from tests.data.requests import family, request

OPTIMIZERS = ({"optimizer_kernel": "foreach"}, {"offload": "optimizer"})
SHARDED = ({"sharding": "zero1"}, {"sharding": "zero1", "optimizer_kernel": "foreach"})


def traced(ranks, others, **fields):
    """Return the timelines of a candidate and of others over its passes."""
    asked = request(family("llama"), Path(), precision="bf16", **fields)
    asked = asked.model_copy(update={"world_size": ranks})
    members = [asked.candidate.model_copy(update=other) for other in others]
    ((plain, *rest),) = alike([asked.candidate, *members])
    found = trace_alike(asked, rest)
    return [found.get(one) or trace(as_asked(asked, one)) for one in (plain, *members)], members


def as_asked(asked, candidate):
    """Return a request for another candidate."""
    return asked.model_copy(update={"candidate": candidate})


def said(timeline, sizes=(1, 2, 7)):
    """Return all that is priced of a timeline, at some micro-batches."""
    peaks = [timeline.peak(size, steps) for size in sizes for steps in (False, True)]
    work = [
        sorted(timeline.work.of(phase, size))
        for size in sizes
        for phase in ("forward", "backward", "optimizer")
    ]
    places = [timeline.allocated(size, place=place) for size in sizes for place in ("device", "host", "disk")]
    return [(peak.bytes, peak.phase, peak.step, peak.breakdown) for peak in peaks], work, places


@pytest.mark.parametrize(
    ("ranks", "others", "fields"),
    [
        (1, OPTIMIZERS, {}),
        (2, SHARDED, {"sharding": "ddp"}),
        (1, OPTIMIZERS[:1], {"offload": "full", "activation_offload": True}),
        (2, OPTIMIZERS[:1], {"offload": "full", "activation_offload": True, "sharding": "fsdp2"}),
    ],
)
def test_an_optimizer_traced_over_other_passes_is_the_same(ranks, others, fields):
    (plain, *donors), _ = traced(ranks, others, **fields)
    (passes, *whole), members = traced(ranks, others, **fields, checkpointing="full")
    for candidate, donor, expected in zip(members, donors, whole, strict=True):
        composed = with_optimizer(candidate, passes, plain, donor)
        assert said(composed) == said(expected)
        assert composed.facts["rung"] == expected.facts["rung"]
        assert composed.facts["optimizer_of"] == donor.facts["rung"]
        assert composed.sizes(5) != passes.sizes(5)


@pytest.mark.parametrize(
    ("ranks", "fields"), [(1, {}), (2, {"sharding": "ddp"}), (2, {"sharding": "fsdp2", "offload": "full"})]
)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_passes_traced_alone_take_the_optimizer_of_others(name, ranks, fields, monkeypatch):
    passes = {"checkpointing": "full", "loss": "chunked", **fields}
    donor, asked = (
        request(family(name), Path(), precision="bf16", **own).model_copy(update={"world_size": ranks})
        for own in ({"checkpointing": "selective", **fields}, passes)
    )
    given, whole = trace(donor), trace(asked)
    monkeypatch.setattr(StepTracer, "_updated", None)  # no optimizer steps
    composed = trace_alike(asked, (), donor=given)[asked.candidate]
    assert said(composed) == said(whole)
    assert composed.facts["rung"] == whole.facts["rung"]


def test_passes_that_hold_for_one_micro_batch_take_the_optimizer_of_others(monkeypatch):
    (plain, *donors), _ = traced(1, OPTIMIZERS)
    monkeypatch.setattr(trace_module, "_attempts", lambda *_: ())  # as where sizes are not affine
    (passes, *whole), members = traced(1, OPTIMIZERS, checkpointing="full", micro_batch=3)
    for candidate, donor, expected in zip(members, donors, whole, strict=True):
        composed = with_optimizer(candidate, passes, plain, donor)
        assert composed.exact == expected.exact == 3
        assert said(composed, (3,)) == said(expected, (3,))
    monkeypatch.setattr(StepTracer, "_updated", None)  # no optimizer steps
    asked = request(family("llama"), Path(), precision="bf16", checkpointing="full", micro_batch=3)
    ((candidate, alone),) = trace_alike(asked, (), donor=plain).items()
    assert candidate.micro_batch == alone.exact == 3
    assert said(alone, (3,)) == said(passes, (3,))


@pytest.mark.parametrize("passes", [{"checkpointing": "full"}, {"loss": "chunked", "attention": "eager"}])
@pytest.mark.parametrize(
    ("name", "changes"),
    [("gpt2", {}), ("gpt2", {"n_layer": 9}), ("llama", {}), ("llama", {"tie_word_embeddings": True})],
)
def test_passes_of_one_device_give_those_under_ddp(name, changes, passes):
    asked = request(family(name, **changes), Path(), precision="bf16")
    plain = asked.candidate
    other = plain.model_copy(update=passes)
    donor, candidate = (one.model_copy(update={"sharding": "ddp"}) for one in (plain, other))
    asked = asked.model_copy(update={"world_size": 2})
    traces = [trace(asked.alone(one)) for one in (other, plain, donor, candidate)]
    composed = with_optimizer(candidate, *traces[:3])
    assert said(composed) == said(traces[3])
    assert said(composed) != said(traces[2])
    assert composed.facts["rung"] == candidate.key()
    assert with_optimizer(candidate, traces[0], traces[0], traces[2]) is None, "other passes than the donor's"


def test_what_does_not_fit_is_not_composed():
    (plain, donor), _ = traced(1, OPTIMIZERS[:1])
    assert with_optimizer(Candidate(), plain, plain, donor) is not None
    other = trace_alike(request(family("llama", hidden_size=32), Path(), precision="bf16"), ())
    (passes,) = other.values()
    assert with_optimizer(Candidate(), passes, plain, donor) is None, "other gradients"
    assert with_optimizer(Candidate(), passes, passes, donor) is None, "another build"
    assert with_optimizer(Candidate(), plain, replace(plain, exact=4), donor) is None
    assert with_optimizer(Candidate(), plain, plain, replace(donor, exact=4)) is None
    lora = request(family("llama"), Path(), precision="bf16", adapters="lora")
    (adapted,) = trace_alike(lora, ()).values()
    assert with_optimizer(Candidate(), adapted, plain, donor) is None, "fewer gradients"


def unmade(program):
    """Return what a program releases that is not there."""
    there = Counter()
    found = []
    for event in program.events:
        there[event if event >= 0 else ~event] += 1 if event >= 0 else -1
        if event < 0 and there[~event] < 0:
            found.append(~event)
    return found


def test_of_optimizers_that_move_the_parameters_each_has_those_of_the_build():
    """The second ZeRO-1 over the same passes released what the first had moved them to."""
    asked = request(family("llama"), Path(), precision="bf16", sharding="ddp")
    asked = asked.model_copy(update={"world_size": 2})
    members = [asked.candidate.model_copy(update=other) for other in SHARDED]
    ((_, *rest),) = alike([asked.candidate, *members])
    found = trace_alike(asked, rest)
    for candidate in members:
        own = trace(as_asked(asked, candidate))
        timeline = found.get(candidate, own)  # what is left out is traced by itself
        assert said(timeline) == said(own)
        assert [unmade(timeline.program(size, True)) for size in (1, 2)] == [[], []]
