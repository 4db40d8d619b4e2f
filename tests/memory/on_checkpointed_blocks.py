"""Composed timelines of checkpointed blocks on the stand-in for CUDA; `test_checkpointed_blocks.py` runs them alone."""

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


def check_every_number(name, device, **fields):
    traced = of(name, device, BLOCKS // 2, **fields)
    assert numbers_covered(traced) == range(2, BLOCKS - 1)
    for count in (2, BLOCKS - 2):
        whole = of(name, device, count, short=False, **fields)
        assert taken(with_checkpointed(traced, count)) == taken(whole)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gpt2", {"checkpointing": "full"}),
        ("llama", {"checkpointing": "selective"}),
        ("llama", {"checkpointing": "offloaded", "adapters": "lora"}),
        ("mixtral", {"checkpointing": "full"}),
        ("bert", {"checkpointing": "full", "precision": "fp16"}),
    ],
    ids=str,
)
def test_every_number_is_to_the_byte_what_a_trace_of_it_is(name, fields):
    check_every_number(name, "cuda:0", **fields)
