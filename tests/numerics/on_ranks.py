"""One rank of real trainings under every sharding; rank 0 writes losses and parameters. Started by torch's launcher."""

import os
import sys
import tempfile
from pathlib import Path

import torch

from autotune.train.build import assemble
from autotune.train.sharding.ranks import RENDEZVOUS
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


def train(case, ranks=1):
    """Return losses and whole parameters after three global steps of eight samples, however many ranks share them."""
    micro_batch, steps = (MICRO_BATCH, ACCUMULATION) if ranks > 1 else (MICRO_BATCH * ACCUMULATION * RANKS, 1)
    with tempfile.TemporaryDirectory() as folder:
        probe = request(family("llama"), Path(folder), micro_batch=micro_batch, **case)
        training = assemble(probe.model_copy(update={"world_size": ranks, "accumulation_steps": steps}))
        losses = []
        for step in range(STEPS):
            total = 0.0
            for index in range(steps):
                with training.reduction(index == steps - 1):
                    loss = training.loss(training.batch(step * steps + index, micro_batch))
                    (loss / steps).backward()
                total += float(loss.detach()) / steps
            training.optimizer.step()
            training.optimizer.zero_grad()
            losses.append(training.ranks.mean(total))
        whole = {
            name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
            for name, value in training.model.named_parameters()
        }
        training.close()
    return losses, whole


def main(file):
    results = []
    for number, case in enumerate(CASES):
        if number:  # the launcher's own rendezvous serves one group
            os.environ[RENDEZVOUS] = f"{file}.{number}"
        results.append(train(case, RANKS))
    if os.environ["RANK"] == "0":
        torch.save(results, file)


if __name__ == "__main__":
    main(sys.argv[1])
