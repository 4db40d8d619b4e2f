"""The timeline of any number of checkpointed blocks, composed of a trace of another, against a trace of its own."""

from pathlib import Path

import pytest

from autotune.memory.reserved import allocator_usage
from autotune.timeline.checkpointed import numbers_covered, with_checkpointed
from autotune.worker.tracing.trace import trace
from tests.data.requests import family, request

BLOCKS = 8
DEPTH = {"gpt2": "n_layer"}


def of(name, device, count, short=True, **fields):
    spec = family(name, **{DEPTH.get(name, "num_hidden_layers"): BLOCKS})
    asked = request(spec, Path(), device=device, seq_len=64, checkpointed_blocks=count, **fields)
    return trace(asked, short=short)


def taken(timeline):
    """Return what is allocated, reserved and computed at some micro-batches."""
    found = []
    for micro_batch in (1, 2, 7):
        for accumulating in (False, True):
            usage = allocator_usage(timeline, micro_batch, accumulating, True, blas_workspace=1 << 20)
            found += [
                usage.allocated_peak,
                usage.reserved_peak,
                timeline.allocated(micro_batch, accumulating),
            ]
        peak = timeline.peak(micro_batch)
        found += [peak.phase, peak.breakdown]
        found += [
            sorted(timeline.work.of(phase, micro_batch)) for phase in ("forward", "backward", "optimizer")
        ]
    return found


@pytest.mark.parametrize(
    ("name", "device", "fields"),
    [
        ("gpt2", "cuda:0", {"checkpointing": "full"}),
        ("gpt2", "cpu", {"checkpointing": "full", "precision": "fp32"}),
        ("llama", "cuda:0", {"checkpointing": "selective"}),
        ("llama", "cuda:0", {"checkpointing": "offloaded", "adapters": "lora"}),
        ("mixtral", "cuda:0", {"checkpointing": "full"}),
        ("bert", "cuda:0", {"checkpointing": "full", "precision": "fp16"}),
    ],
    ids=str,
)
def test_every_number_is_to_the_byte_what_a_trace_of_it_is(name, device, fields):
    traced = of(name, device, BLOCKS // 2, **fields)
    assert numbers_covered(traced) == range(2, BLOCKS - 1)
    for count in (2, BLOCKS - 2):
        assert taken(with_checkpointed(traced, count)) == taken(
            of(name, device, count, short=False, **fields)
        )


def test_a_trace_of_all_blocks_checkpointed_tells_of_no_other_number():
    assert not numbers_covered(of("gpt2", "cpu", "all", checkpointing="full"))
