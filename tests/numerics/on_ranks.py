"""One rank of real trainings under every sharding; rank 0 writes losses and parameters. Started by torch's launcher."""

import gc
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from autotune.candidate import Candidate
from autotune.rules import illegal
from autotune.train.build import assemble
from autotune.train.replacing import replaced
from autotune.train.sharding import ranks
from autotune.train.stream import IGNORED
from tests.data.requests import family, request

STEPS, ACCUMULATION, MICRO_BATCH, RANKS = 3, 2, 2, 2
SHARDINGS = ("ddp", "zero1", "zero2", "fsdp2")
GRID = [
    {"sharding": sharding, "checkpointing": checkpointing, **more, "optimizer": "sgd", "precision": precision}
    for precision in ("fp32", "bf16")
    for sharding in SHARDINGS
    for checkpointing, more in (
        ("none", {}), ("selective", {}), ("every-2", {}), ("full", {}),
        ("none", {"offload": "optimizer"}), ("full", {"offload": "optimizer"}),
    )
]  # fmt: skip
"""Sharding x checkpointing x precision; and what the space `multi_gpu` has beside them on a CPU."""
CASES = [case for case in GRID if not illegal(Candidate(**case))]
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
    if not illegal(Candidate(sharding=sharding, precision=precision, offload=more.get("offload", "none")))
]
DEEPSPEED = [
    {"engine": "deepspeed", "sharding": sharding, "optimizer": optimizer, "precision": precision, **more}
    for sharding, optimizer, precision, more in (
        ("zero1", "sgd", "fp32", {}),
        ("zero2", "sgd", "fp32", {"checkpointing": "full"}),
        ("zero2", "adamw", "bf16", {}),
        ("zero2", "sgd", "fp32", {"offload": "optimizer"}),
        ("zero2", "sgd", "fp32", {"checkpointing": "selective"}),
        ("zero3", "sgd", "fp32", {}),
        *(("zero3", "sgd", "fp32", {"checkpointing": how}) for how in ("selective", "every-2", "full")),
        ("zero3", "sgd", "bf16", {"checkpointing": "full"}),
        ("zero3", "adamw", "bf16", {}),
        ("zero3", "sgd", "fp32", {"offload": "optimizer"}),
    )
]


def train(case, size=1):
    """Take three global steps of eight samples, however many ranks share them.

    Return losses, whole parameters after them, and of plain SGD under torch the whole gradients of each step.
    """
    micro_batch, steps = (MICRO_BATCH, ACCUMULATION) if size > 1 else (MICRO_BATCH * ACCUMULATION * RANKS, 1)
    with tempfile.TemporaryDirectory() as folder:
        fields = {name: value for name, value in case.items() if name != "padding"}
        probe = request(family("llama"), Path(folder), micro_batch=micro_batch, **fields)
        training = assemble(probe.model_copy(update={"world_size": size, "accumulation_steps": steps}))
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
    with replaced([(ranks, "form_group", cache(ranks.form_group)), (ranks, "end_group", lambda: None)]):
        results = []
        for case in globals()[cases]:
            results.append(train(case, RANKS))
            gc.freeze()  # sharding collects garbage, and libraries make a million objects that are none
    if os.environ["RANK"] == "0":
        torch.save(results, file)
    ranks.end_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
