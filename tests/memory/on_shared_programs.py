"""Traces that share what they compile, through few blocks; `test_shared_programs.py` runs them alone."""

from pathlib import Path

import pytest
import torch

from autotune.timeline.depth import NotAlike
from autotune.worker.tracing.fakes import compiler
from autotune.worker.tracing.step_tracer import Unlike
from autotune.worker.tracing.trace import trace
from tests.data.requests import family, request

BLOCKS = 11
SHARING = [
    {"checkpointing": "full", "loss": "chunked"},
    {"activation_offload": True, "optimizer_kernel": "foreach"},
]


def of(short=True, ranks=1, **fields):
    spec = family("gpt2", n_layer=BLOCKS)
    asked = request(spec, Path(), device="cuda:0", seq_len=64, compile="regional", **fields)
    return trace(asked.model_copy(update={"world_size": ranks}), short=short)


def taken(timeline):
    """Return what is allocated and computed at some micro-batches."""
    work = timeline.work
    return [
        (timeline.peak(size).breakdown, timeline.allocated(size, accumulating), sorted(work.of(phase, size)))
        for size in (1, 2, 40)
        for accumulating in (False, True)
        for phase in ("forward", "backward", "optimizer")
    ]


def test_one_program_serves_other_losses_checkpoints_and_offload_to_the_byte(monkeypatch):
    alone = [of(short=False, **fields) for fields in SHARING]
    made, load = [], compiler._program
    monkeypatch.setattr(compiler, "_program", lambda *args: made.append(args) or load(*args))
    with compiler.kept_programs():
        of()
        assert len(made) == 3 * 2  # micro-batches, forward and backward
        shared = [of(**fields) for fields in SHARING]
        assert len(made) == 3 * 2
    for own, ours, kept in zip(alone, shared, (4, 6), strict=True):  # copies run ahead by some blocks
        assert own.facts["blocks"] == "all: asked for"
        assert ours.facts["blocks"] == f"{kept} of {BLOCKS}"
        assert taken(ours) == taken(own)


def test_one_program_serves_shards_with_offload_and_without_to_the_byte(monkeypatch):
    """Full offload goes without autocast's cache of casts, at which the compiler's guards look."""
    sharded = {"sharding": "fsdp2", "ranks": 2}
    own = of(short=False, offload="full", **sharded)
    made, load = [], compiler._program
    monkeypatch.setattr(compiler, "_program", lambda *args: made.append(args) or load(*args))
    with compiler.kept_programs():
        of(**sharded)
        assert len(made) == 3 * 2
        ours = of(offload="full", **sharded)
        assert len(made) == 3 * 2
    assert taken(ours) == taken(own)
    assert torch.is_autocast_cache_enabled()


def test_on_a_gpu_compiled_kernels_compute_while_they_move_bytes():
    work = of().work
    assert not any(
        o.kind.startswith("fused_") for phase in ("forward", "backward") for o, _ in work.of(phase, 2)
    )


def drawn(timeline, size):
    """Return the random numbers of one forward pass, with torch's generator and within compiled kernels."""
    counts = {"random": 0, "fused_random": 0}
    for operator, count in timeline.work.of("forward", size):
        if operator.kind in counts:
            counts[operator.kind] += count * operator.flops
    return counts


def test_compiled_blocks_draw_the_masks_of_dropout_and_compute_in_their_kernels():
    spec = family("gpt2", n_layer=2)

    def on_cpu(**fields):
        return trace(request(spec, Path(), seq_len=32, **fields))

    plain, compiled = on_cpu(), on_cpu(compile="regional")
    hidden, heads = spec.config["n_embd"], spec.config["n_head"]
    for size in (1, 2, 5):
        embedded = size * 32 * hidden
        masks = 2 * size * (heads * 32 * 32 + 2 * 32 * hidden)
        seeds = 2 * 3
        assert drawn(plain, size) == {"random": embedded + masks, "fused_random": 0}
        assert drawn(compiled, size) == {"random": embedded + seeds, "fused_random": masks}
        for phase in ("forward", "backward"):
            kernels = [o for o, _ in compiled.work.of(phase, size) if o.kind == "fused_pointwise"]
            assert sum(o.flops for o in kernels) > embedded
    assert not any(o.kind.startswith("fused_") for o, _ in plain.work.of("backward", 2))


def test_steps_that_turn_out_unlike_keep_what_was_compiled(monkeypatch):
    with compiler.kept_programs():
        with compiler.fake_compiler(None, setting="unlike"):
            pass
        resets = []
        monkeypatch.setattr(compiler.torch._dynamo, "reset", lambda: resets.append(1))
        for error in (Unlike, NotAlike):
            with pytest.raises(error), compiler.fake_compiler(None, setting="unlike"):
                raise error
        assert not resets
        with pytest.raises(ZeroDivisionError), compiler.fake_compiler(None, setting="unlike"):
            raise ZeroDivisionError
        assert resets


@pytest.mark.parametrize("setting", ["fp32", "bf16"])
def test_a_program_of_another_setting_is_not_shared(monkeypatch, setting):
    resets = []
    monkeypatch.setattr(compiler.torch._dynamo, "reset", lambda: resets.append(setting))
    with compiler.kept_programs():
        for one in ("bf16", "bf16", setting):
            with compiler.fake_compiler(None, setting=one):
                pass
        assert len(resets) == (2 if setting == "fp32" else 1)
