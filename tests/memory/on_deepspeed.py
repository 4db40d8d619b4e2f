"""DeepSpeed's engine on fake tensors beside the same on real ones. Prints JSON; it alters the process that it is in.

The ranks but the first do not exist for either, so no other process disturbs the peak.
"""

import json
import sys
import tempfile

import deepspeed.comm.comm
import torch
from deepspeed.utils import groups

from autotune.worker.replacing import replaced
from autotune.worker.techniques.sharding import process_group
from autotune.worker.tracing.fakes import ranks as fake_ranks
from autotune.worker.tracing.kernel_workspace import ON_CPU
from autotune.worker.tracing.trace import trace
from autotune.worker.training import Ranks
from tests.data.requests import family
from tests.memory.counted import measured
from tests.memory.counted import request as plain

CASES = (
    ("zero1", "fp32", "none"), ("zero2", "bf16", "optimizer"), ("zero3", "bf16", "none"), ("zero3", "fp32", "full"),
)  # fmt: skip
GLOO = (torch.ops.c10d._allgather_base_.default, torch.ops.c10d._reduce_scatter_base_.default)


DEEP = family("llama", num_hidden_layers=7)
"""Blocks enough for a trace of few of them, which an engine's is not."""

LIGHT = family("gpt2", n_embd=128, n_layer=6, n_head=4, vocab_size=1024)
"""A model whose gradients are more than the activations of a few samples."""


def request(world_size, **fields):
    probe = plain("tiny-llama", engine="deepspeed", **fields)
    return probe.model_copy(update={"world_size": world_size, "folder": tempfile.gettempdir()})


def on_many_blocks():
    """Return what a trace of each stage says of the blocks of a deeper model that it ran."""
    return [
        trace(request(2, sharding=sharding).model_copy(update={"model": DEEP})).facts["blocks"]
        for sharding in ("zero1", "zero2", "zero3")
    ]


def on_cpu():
    """Return [traced bytes, real bytes] of each case."""
    for operator in GLOO:  # gloo's own buffers, which the fake backend does not make
        ON_CPU.pop(operator)
    found = []
    for sharding, precision, offload in CASES:
        fields = {"sharding": sharding, "precision": precision, "offload": offload}
        timeline = trace(request(2, **fields))
        for micro_batch, micro_steps in ((3, 1), (5, 2)) if precision == "fp32" else ((5, 2),):
            rank = 1 if sharding == "zero2" else 0
            real = real_bytes(rank, request(2, micro_batch=micro_batch, **fields), micro_steps)
            traced = timeline.allocated(micro_batch, accumulating=micro_steps > 1)
            found.append([traced, real])
    return found


def real_bytes(rank, probe, micro_steps):
    """Return what a rank takes of a group whose others do not exist."""

    def form_group(device, size, alike):
        return fake_ranks.form_as(device, Ranks(rank, size, alike))

    changes = [
        (process_group, "form_group", form_group),
        (deepspeed.comm.comm, "cdb", None),
        (groups, "_WORLD_GROUP", None),
    ]
    with replaced(changes):
        return measured(probe, micro_steps)


def on_each_rank():
    """Return of each stage the traced bytes and the real ones of each of four ranks.

    Not of ZeRO-3, which compares with rank 0 and finds nothing of it: parameters are cut evenly there, each by itself.
    """
    for operator in GLOO:
        ON_CPU.pop(operator)
    found = {}
    for sharding in ("zero1", "zero2"):
        probe = request(4, sharding=sharding, precision="fp32", micro_batch=2)
        probe = probe.model_copy(update={"model": LIGHT})
        traced = trace(probe).allocated(2, accumulating=True)
        found[sharding] = [traced, [real_bytes(rank, probe, 2) for rank in range(4)]]
    return found


def on_cuda():
    """Return the parameters, and peaks on 2 and on 8 ranks, of ZeRO-3 in bf16; of ZeRO-2's offload the host's."""
    fields = {"device": "cuda:0", "precision": "bf16"}
    few, many = (trace(request(world_size, sharding="zero3", **fields)) for world_size in (2, 8))
    away = trace(request(2, sharding="zero2", offload="optimizer", **fields))
    moved = [away.allocated(2, accumulating, "host") for accumulating in (False, True)]
    return [few.facts["parameters"], few.allocated(2), many.allocated(2), many.exact, *moved]


if __name__ == "__main__":
    cases = {"cuda": on_cuda, "cpu": on_cpu, "blocks": on_many_blocks, "ranks": on_each_rank}
    json.dump(cases[sys.argv[1]](), sys.stdout)
