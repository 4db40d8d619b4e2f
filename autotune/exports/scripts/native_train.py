"""Train with the parts of autotune that were measured. Start it with launch.sh.

`training.loss` takes a batch of your own: a dict of the forward's arguments, on `training.device`, with at most
micro-batch samples of at most the measured length. The rest of the loop is yours to extend.
"""

import argparse
import gc
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

# Before there is a process group: what is in them would keep it for good, as the default of an argument.
import torch.distributed.nn
import torch.distributed.optim
from torch.distributed.tensor import debug
from torch.utils.data import default_collate

from autotune.probe.protocol import ProbeRequest
from autotune.run.best import Best
from autotune.worker.build.assembly import assemble
from autotune.worker.data.loading import Loader

BEST = Path(__file__).with_name("best.yaml")

# Your own data: a map-style dataset, and what makes a batch (a dict of the forward's arguments) of its samples. Without
# one, batches are those of the measurement; a function of yours that gives a dataset needs none here.
DATASET = None
COLLATE = default_collate


def main() -> None:
    """Train from best.yaml with the parts of autotune that were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument(
        "--scratch", type=Path, help="folder for the files of offload; default: a temporary one"
    )
    arguments = parser.parse_args()
    with ExitStack() as ending:
        scratch = arguments.scratch or Path(ending.enter_context(tempfile.TemporaryDirectory()))
        train(arguments.steps, scratch, ending)
        if torch.distributed.is_initialized():
            debug._clear_sharding_prop_cache()  # DTensor remembers meshes, and these the process group
        gc.collect()  # the training goes before the process group: gloo can wait for itself when DDP goes last


def train(steps: int, scratch: Path, ending: ExitStack) -> list[float]:
    """Take `steps` optimizer steps; print and return the loss of each. What is left to close goes to `ending`."""
    best = Best.from_yaml(BEST.read_text("utf-8"), str(BEST))
    device = best.device.torch_name
    if best.gpus > 1 and best.device.kind == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    accumulation, micro_batch = best.accumulation.steps, best.candidate.micro_batch
    training = assemble(
        ProbeRequest(
            kind="train",
            model=best.model,
            candidate=best.candidate,
            seq_len=best.seq_len,
            lengths=best.lengths,
            accumulation_steps=accumulation,
            device=device,
            world_size=best.gpus,
            nodes=best.nodes,
            budget=best.memory.budget,
            seed=best.seed,
            sample_seconds=1.0,  # not used here: only a probe samples
            sample_steps=1,
            folder=str(scratch),
        )
    )
    ending.callback(training.close)
    losses = []
    batch_at, close = feed(training, best)
    ending.callback(close)
    for step in range(steps):
        total = 0.0
        indices = range(step * accumulation, (step + 1) * accumulation)
        batches = [batch_at(index, micro_batch) for index in indices]
        # Padded batches have unequal numbers of targets: each loss counts for as many as it has.
        for index, batch, share in zip(indices, batches, training.shares(batches), strict=True):
            with training.reduction(index == indices[-1]):
                loss = training.loss(training.place(batch))
                (loss * share).backward()
            total += float(loss.detach()) * share
        training.optimizer.step()
        training.optimizer.zero_grad()
        losses.append(training.ranks.mean(total))
        if training.ranks.rank == 0:
            print(f"loss {losses[-1]:.4f}", flush=True)
    return losses


def feed(training, best):
    """Return `batch_at(index, micro_batch)`, and what ends its workers."""
    if DATASET is None:
        return training.batch, lambda: None
    ranks = training.ranks
    # With the workers, pinned memory and batches in advance that were chosen.
    loader = Loader(DATASET, COLLATE, best.candidate, training.device, best.seed, ranks.data_size)

    def batch_at(index, micro_batch):
        return loader.batch(index * ranks.data_size + ranks.data_rank, micro_batch)

    return batch_at, loader.close


if __name__ == "__main__":
    main()
