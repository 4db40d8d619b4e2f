"""One rank of real trainings under every sharding; rank 0 writes losses and parameters."""

import gc
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from autotune.candidate import Candidate
from autotune.techniques.check import refusal
from autotune.worker.build.assembly import assemble
from autotune.worker.data.packing import IGNORED
from autotune.worker.measuring.memory_breakdown import local
from autotune.worker.replacing import replaced
from autotune.worker.techniques import activation_offload, compilation
from autotune.worker.techniques.mapped_files import is_mapped
from autotune.worker.techniques.sharding import process_group
from tests.data.requests import family, request
from tests.numerics.building import built, peaks_of_build

STEPS, ACCUMULATION, MICRO_BATCH, RANKS = 3, 2, 2, 2
SHARDINGS = ("ddp", "zero1", "zero2", "fsdp2")
GRID = [
    {"sharding": sharding, "checkpointing": checkpointing, **more, "optimizer": "sgd", "precision": precision}
    for precision in ("fp32", "bf16")
    for sharding in SHARDINGS
    for checkpointing, more in (
        ("none", {}), ("selective", {}), ("full", {"checkpointed_blocks": 1}), ("full", {}),
        ("none", {"offload": "optimizer"}), ("full", {"offload": "optimizer"}),
    )
]  # fmt: skip
"""Sharding x checkpointing x precision; and what the space `multi_gpu` has beside them on a CPU."""
CASES = [case for case in GRID if not refusal(Candidate(**case))]
CASES += [
    {"sharding": sharding, "optimizer": optimizer, "precision": precision, **more}
    for sharding in SHARDINGS
    for optimizer, precision, more in (
        ("sgd", "fp32", {"padding": "uneven"}),
        ("adamw", "fp32", {}),
        ("adamw", "bf16", {"checkpointing": "full"}),
        ("adamw", "fp16", {}),
        ("adamw", "fp32", {"offload": "optimizer"}),
    )
    if not refusal(Candidate(sharding=sharding, precision=precision, offload=more.get("offload", "none")))
]
SHORT = [
    {"sharding": sharding, "optimizer": "sgd", "precision": "fp32", "reduce_dtype": "bf16"}
    for sharding in ("ddp", "fsdp2", "hsdp")
]
"""Gradients that are added up in fewer digits than they are made in."""
CASES += [case for case in SHORT if case["sharding"] != "hsdp"]
CASES += [{"sharding": "fsdp2", "optimizer": optimizer, "precision": precision, "offload": "full"}
          for optimizer, precision in (("sgd", "fp32"), ("adamw", "bf16"))]  # fmt: skip
CASES += [
    {"sharding": "fsdp2", "optimizer": "sgd", "precision": "fp32", "checkpointing": "offloaded"},
    *({"sharding": sharding, "optimizer": "sgd", "precision": "fp32", "compile": "regional"}
      for sharding in ("ddp", "zero1", "fsdp2")),
    *({"sharding": sharding, "optimizer": "adamw", "precision": "fp32", "adapters": "lora"}
      for sharding in ("ddp", "zero2", "fsdp2")),
]  # fmt: skip
HYBRID = [
    {"sharding": "hsdp", "checkpointing": "full", "optimizer": "sgd", "precision": "fp32"},
    {"sharding": "hsdp", "optimizer": "sgd", "precision": "fp32", "padding": "uneven"},
    {"sharding": "hsdp", "optimizer": "sgd", "precision": "bf16"},
    {"sharding": "hsdp", "optimizer": "adamw", "precision": "fp32", "offload": "optimizer"},
    {"sharding": "hsdp", "optimizer": "sgd", "precision": "fp32", "offload": "full"},
    SHORT[-1],
]
BUILT = [
    *({"name": name, "sharding": "fsdp2"} for name in ("gpt2", "gemma2", "mixtral", "t5", "vit")),
    {"name": "llama", "sharding": "fsdp2", "offload": "full"},
    {"name": "llama", "sharding": "zero2", "readable": False},
]
"""Models whose build is compared: tied weights, buffers, experts, embeddings that two stacks share, images."""
NODES = {"HYBRID": 2}
"""Nodes that the ranks of some cases are in; those of all others are in one."""
DEEPSPEED = [
    {"engine": "deepspeed", "sharding": sharding, "optimizer": optimizer, "precision": precision, **more}
    for sharding, optimizer, precision, more in (
        ("zero1", "sgd", "fp32", {}),
        ("zero2", "sgd", "fp32", {"checkpointing": "full"}),
        ("zero2", "adamw", "bf16", {}),
        ("zero2", "sgd", "fp32", {"offload": "optimizer"}),
        ("zero2", "sgd", "fp32", {"checkpointing": "selective"}),
        ("zero3", "sgd", "fp32", {}),
        *(("zero3", "sgd", "fp32", {"checkpointing": how}) for how in ("selective", "full")),
        ("zero3", "sgd", "fp32", {"checkpointing": "full", "checkpointed_blocks": 1}),
        ("zero3", "sgd", "bf16", {"checkpointing": "full"}),
        ("zero3", "adamw", "bf16", {}),
        ("zero3", "sgd", "fp32", {"offload": "optimizer"}),
        ("zero1", "sgd", "fp32", {"offload": "optimizer"}),
        ("zero3", "sgd", "fp32", {"offload": "full"}),
        ("zero3", "sgd", "fp32", {"checkpointing": "offloaded"}),
        ("zero3", "sgd", "fp32", {"activation_offload": True}),
        ("zero2", "sgd", "fp32", {"loss": "chunked"}),
        ("zero2", "sgd", "fp32", {"compile": "regional"}),
        ("zero3", "adamw", "fp32", {"adapters": "lora"}),
    )
]


def train(case, size=1, samples=MICRO_BATCH * ACCUMULATION * RANKS, nodes=1):
    """Take three global steps of as many samples, however many ranks in however many nodes share them.

    Return losses, whole parameters after them, and of plain SGD under torch the whole gradients of each step.
    """
    micro_batch, steps = (MICRO_BATCH, ACCUMULATION) if size > 1 else (samples, 1)
    with tempfile.TemporaryDirectory() as folder:
        fields = {name: value for name, value in case.items() if name != "padding"}
        probe = request(family("llama"), Path(folder), micro_batch=micro_batch, **fields)
        among = {"world_size": size, "nodes": nodes, "accumulation_steps": steps}
        training = assemble(probe.model_copy(update=among))
        losses, gradients = [], []
        watched = case["optimizer"] == "sgd" and case.get("engine") != "deepspeed"
        for step in range(STEPS):
            total = 0.0
            batches = [taken(training, step * steps + index, micro_batch, case) for index in range(steps)]
            for index, (batch, share) in enumerate(zip(batches, training.shares(batches), strict=True)):
                with training.reduction(index == steps - 1):
                    loss = training.loss(batch)
                    (loss * share).backward()
                total += float(loss.detach()) * share
            if watched:
                gradients.append([gathered(parameter.grad) for parameter in training.model.parameters()])
            if case.get("offload") == "full" and case.get("engine") != "deepspeed" and size > 1:
                held = [tensor for p in training.model.parameters() for tensor in (p, p.grad)]
                held += [value for value in training.optimizer.state_tensors() if value.dim()]
                assert all(is_mapped(local(value)) for value in held), "a shard is not in a file"
            training.optimizer.step()
            training.optimizer.zero_grad()
            losses.append(training.ranks.mean(total))
        whole = {name: gathered(value) for name, value in training.model.named_parameters()}
        training.close()
    return losses, whole, gradients


def taken(training, index, micro_batch, case):
    """Return a rank's batch; with uneven padding each sample has its own number of labels, whoever takes it."""
    batch = dict(training.batch(index, micro_batch))
    if "padding" in case:
        first = (index * training.ranks.size + training.ranks.rank) * micro_batch
        for row, labels in enumerate(batch["labels"]):
            labels[3 + 5 * (first + row) % 27 :] = IGNORED
    return batch


def gathered(parameter):
    """Return a copy of the whole parameter, wherever its shards are."""
    if hasattr(parameter, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach().clone()


def main(file, cases="CASES"):
    """Train all cases in one process group: DeepSpeed keeps what it found of the first one for good."""
    with replaced(
        [
            (process_group, "form_group", cache(process_group.form_group)),
            (process_group, "end_group", lambda: None),
            (
                compilation,
                "BACKEND",
                "aot_eager",
            ),  # the same graphs; whose kernels they are is not looked at here
            (activation_offload, "SMALL", 1 << 10),  # so that the tiny model's activations count as large
        ]
    ):
        results = []
        size, nodes = int(os.environ["WORLD_SIZE"]), NODES.get(cases, 1)
        for case in globals()[cases]:
            results.append(train(case, size, nodes=nodes))
            gc.freeze()  # sharding collects garbage, and libraries make a million objects that are none
        if cases == "CASES":
            results.append([built(size=size, **case) for case in BUILT])
            results.append(peaks_of_build(size, sharding="fsdp2"))
    if os.environ["RANK"] == "0":
        torch.save(results, file)
    process_group.end_group()


def forked(rank, size, file, cases):
    """Be one of several processes that share what was imported."""
    each = size // NODES.get(cases, 1)
    place = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": each,
        "AUTOTUNE_RENDEZVOUS": f"{file}.rendezvous",
    }
    os.environ.update({name: str(value) for name, value in place.items()}, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    main(file, cases)


if __name__ == "__main__":
    if "RANK" in os.environ:  # by torch's launcher
        main(*sys.argv[1:])
    else:  # python -m tests.numerics.on_ranks FILE CASES RANKS
        into, which, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
        torch.multiprocessing.start_processes(forked, (count, into, which), count, start_method="fork")
