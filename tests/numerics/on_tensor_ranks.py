"""One rank of trainings whose matrices are cut; rank 0 writes what they gave.

python -m tests.numerics.on_tensor_ranks FILE CASES RANKS
"""

import os
import sys
import tempfile
from pathlib import Path

import torch

from autotune.worker.build.assembly import assemble
from autotune.worker.measuring.memory_breakdown import gradient_bytes, parameter_bytes, state_bytes
from autotune.worker.replacing import replaced
from autotune.worker.techniques.sharding import process_group
from autotune.worker.techniques.sharding.fully_sharded import as_kept
from tests.data.requests import family, request
from tests.numerics.building import built

STEPS, SAMPLES = 3, 8
"""Optimizer steps, and samples of each."""
TWO = [
    {"model": "llama", "precision": "fp32"},
    {"model": "llama", "precision": "bf16"},
    {"model": "llama", "precision": "bf16-pure"},
    {"model": "llama", "precision": "fp32", "checkpointing": "full"},
    {"model": "llama", "precision": "fp32", "checkpointing": "selective"},
    {"model": "llama", "precision": "fp32", "checkpointing": "offloaded"},
    {"model": "llama", "precision": "fp32", "optimizer": "adamw", "offload": "optimizer"},
    {"model": "gemma2", "precision": "fp32"},
    {"model": "gemma2", "precision": "bf16"},
    {"model": "qwen3", "precision": "fp32"},
    {"model": "gpt_neox", "precision": "fp32"},
]
"""Two ranks share one model. Gemma's embeddings are tied; Qwen3 has norms that see a rank's heads alone."""
DROPPING = {"model": "gpt_neox", "precision": "fp32", "hidden_dropout": 0.1}
FOUR = [
    {"model": "llama", "precision": "fp32", "sharding": "fsdp2"},
    {"model": "gemma2", "precision": "bf16", "sharding": "zero2"},
    {"model": "qwen3", "precision": "fp32", "sharding": "zero2"},
]
"""Two pairs of ranks: each pair shares one model, in shards over the pairs."""
BUILT = ["llama", "gemma2"]
"""Models whose build is compared, one of them with tied weights."""
SHARDED = {2: "none", 4: "fsdp2"}
"""How the data-parallel ranks share what is cut, by the number of all."""


def train(case, size=1):
    """Return losses, each step's whole gradients and the bytes held, however many ranks share a step's samples.

    Two micro-steps over several ranks, one on one.
    """
    fields = {"optimizer": "sgd", **case}
    changes = {name: fields.pop(name) for name in ("hidden_dropout",) if name in fields}
    model = family(fields.pop("model"), **changes)
    cut, steps = (2, 2) if size > 1 else (1, 1)
    micro_batch = SAMPLES // steps // max(1, size // cut)
    with tempfile.TemporaryDirectory() as folder:
        probe = request(model, Path(folder), micro_batch=micro_batch, tensor_parallel=cut, **fields)
        training = assemble(probe.model_copy(update={"world_size": size, "accumulation_steps": steps}))
        losses, gradients = [], []
        for step in range(STEPS):
            total = 0.0
            batches = [training.batch(step * steps + index, micro_batch) for index in range(steps)]
            for index, (batch, share) in enumerate(zip(batches, training.shares(batches), strict=True)):
                with training.reduction(index == steps - 1):
                    loss = training.loss(batch)
                    (loss * share).backward()
                total += float(loss.detach()) * share
            held = gradient_bytes(training)
            named = training.model.named_parameters()
            gradients.append({name: whole(as_kept(value.grad, value)) for name, value in named})
            training.optimizer.step()
            training.optimizer.zero_grad()
            losses.append(training.ranks.mean(total))
        bytes_ = [parameter_bytes(training), held, state_bytes(training)]
        apart = training.ranks.largest(total) + training.ranks.largest(-total)
        training.close()
    return losses, gradients, bytes_, apart


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def forked(rank, size, file, cases):
    """Be one of several processes that share what was imported."""
    place = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "AUTOTUNE_RENDEZVOUS": f"{file}.rendezvous",
    }
    os.environ.update({name: str(value) for name, value in place.items()}, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    formed = process_group.form_group(torch.device("cpu"), size, 2)
    with replaced(
        [(process_group, "form_group", lambda *_: formed), (process_group, "end_group", lambda: None)]
    ):
        results = [train(case, size) for case in [*globals()[cases], DROPPING][: None if size == 2 else -1]]
        results.append([built(name, size, tensor_parallel=2, sharding=SHARDED[size]) for name in BUILT])
    if rank == 0:
        torch.save(results, file)
    process_group.end_group()


if __name__ == "__main__":
    into, which, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.multiprocessing.start_processes(forked, (count, into, which), count, start_method="fork")
