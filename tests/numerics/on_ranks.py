"""One rank of real trainings under every sharding; rank 0 writes losses and parameters. Started by torch's launcher."""

import os
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from autotune.train.build import assemble
from autotune.train.replacing import replaced
from autotune.train.sharding import ranks
from autotune.train.stream import IGNORED
from tests.data.requests import family, request

STEPS, ACCUMULATION, MICRO_BATCH, RANKS = 3, 2, 2, 2
CASES = [
    {"sharding": sharding, "optimizer": optimizer, "precision": precision, **more}
    for sharding in ("ddp", "zero1", "zero2", "fsdp2")
    for optimizer, precision, more in (
        ("sgd", "fp32", {}),
        ("adamw", "fp32", {"checkpointing": "full"}),
        ("adamw", "bf16", {}),
        ("adamw", "fp16", {}),
        ("adamw", "fp32", {"offload": "optimizer"}),
    )
    if not (sharding == "zero1" and more.get("offload"))
    if not (sharding in {"zero2", "fsdp2"} and precision == "fp16")
]
CASES += [{"sharding": sharding, "optimizer": "sgd", "precision": "fp32", "padding": "uneven"}
          for sharding in ("ddp", "fsdp2")]  # fmt: skip
DEEPSPEED = [
    {"engine": "deepspeed", "sharding": sharding, "optimizer": optimizer, "precision": precision, **more}
    for sharding, optimizer, precision, more in (
        ("zero1", "sgd", "fp32", {}),
        ("zero2", "sgd", "fp32", {"checkpointing": "full"}),
        ("zero2", "adamw", "bf16", {}),
        ("zero2", "sgd", "fp32", {"offload": "optimizer"}),
        ("zero3", "sgd", "fp32", {}),
        ("zero3", "adamw", "bf16", {}),
        ("zero3", "sgd", "fp32", {"offload": "optimizer"}),
    )
]


def train(case, size=1):
    """Return losses and whole parameters after three global steps of eight samples, however many ranks share them."""
    micro_batch, steps = (MICRO_BATCH, ACCUMULATION) if size > 1 else (MICRO_BATCH * ACCUMULATION * RANKS, 1)
    with tempfile.TemporaryDirectory() as folder:
        fields = {name: value for name, value in case.items() if name != "padding"}
        probe = request(family("llama"), Path(folder), micro_batch=micro_batch, **fields)
        training = assemble(probe.model_copy(update={"world_size": size, "accumulation_steps": steps}))
        losses = []
        for step in range(STEPS):
            total = 0.0
            batches = [taken(training, step * steps + index, micro_batch, case) for index in range(steps)]
            for index, (batch, share) in enumerate(zip(batches, training.shares(batches), strict=True)):
                with training.reduction(index == steps - 1):
                    loss = training.loss(batch)
                    (loss * share).backward()
                total += float(loss.detach()) * share
            training.optimizer.step()
            training.optimizer.zero_grad()
            losses.append(training.ranks.mean(total))
        whole = {name: gathered(value) for name, value in training.model.named_parameters()}
        training.close()
    return losses, whole


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
        results = [train(case, RANKS) for case in globals()[cases]]
    if os.environ["RANK"] == "0":
        torch.save(results, file)
    ranks.end_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
