"""Train with Lightning what was measured. Start it with launch.sh.

Your own data goes into data.py; the learning rate, its schedule, evaluation and checkpoints are yours to choose. What
the Trainer is told stands in trainer.json.
"""

import argparse
import gc
import json
from pathlib import Path

import lightning
import torch
import torch.distributed.nn  # before there is a process group: it would keep that for good, as a default
from data import ExampleData
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from model import SETTINGS, build_model
from transformers import Adafactor

FOLDER = Path(__file__).parent
TRAINER = json.loads((FOLDER / "trainer.json").read_text())
TRAINING = json.loads((FOLDER / "training.json").read_text())
KERNEL = {TRAINING["optimizer_kernel"]: True}  # fused or foreach, of torch's own optimizers
IN_SHARDS = TRAINING["sharding"] in ("fsdp2", "zero2")


def adamw_8bit(parameters):
    """Return bitsandbytes' AdamW with its state in 8 bits."""
    from bitsandbytes.optim import AdamW  # pip install bitsandbytes

    return AdamW(parameters, lr=2e-4, weight_decay=0.01, optim_bits=8)


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.01, **KERNEL),
    "adamw-8bit": adamw_8bit,
    "adafactor": lambda parameters: Adafactor(
        parameters, lr=2e-4, scale_parameter=False, relative_step=False
    ),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **KERNEL),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, **KERNEL),
}


class Training(lightning.LightningModule):
    """The model, its optimizer, and what Lightning is not told by its Trainer's arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.model = None
        self.losses = []

    def configure_model(self) -> None:
        """Build the model, with its blocks checkpointed, and shard them where the candidate does."""
        if self.model is not None:  # Lightning asks again before it evaluates
            return
        model = build_model()
        if TRAINING["kernels"] == "liger":
            from liger_kernel.transformers import _apply_liger_kernel_to_instance  # pip install liger-kernel

            _apply_liger_kernel_to_instance(model=model)
        if TRAINING["checkpointing"] == "full":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if IN_SHARDS:
            shard(model, self.device_mesh["data_parallel"])
        self.model = model

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer that was measured; the learning rate is yours to choose."""
        return OPTIMIZERS[TRAINING["optimizer"]](self.parameters())

    def training_step(self, batch, _index):
        """Return the loss of one micro-step."""
        loss = self.model(**batch).loss
        self.losses.append(loss.detach().float())
        return loss

    def on_train_start(self) -> None:
        """Have DDP's gradients be views of what is sent from the first micro-step on, without a copy beside it."""
        if TRAINING["sharding"] == "ddp":
            handle = None

            def reduce_once(ddp, _arguments) -> None:
                ddp.require_backward_grad_sync = True
                handle.remove()

            handle = self.trainer.strategy.model.register_forward_pre_hook(reduce_once)

    def configure_gradient_clipping(self, _optimizer, gradient_clip_val=None, **_how) -> None:
        """Clip by the common norm. Lightning's own way refuses fused optimizers, whatever the precision."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def optimizer_zero_grad(self, _epoch, _index, optimizer) -> None:
        """Drop gradients, or set them to zero where they are views."""
        optimizer.zero_grad(set_to_none=TRAINING["sharding"] != "ddp")

    def on_train_batch_end(self, _outputs, _batch, index) -> None:
        """Print the loss of each optimizer step."""
        if (index + 1) % TRAINER["accumulate_grad_batches"] == 0:
            mean = self.trainer.strategy.reduce(torch.stack(self.losses).mean(), reduce_op="mean")
            if self.global_rank == 0:
                print(f"loss {mean.item():.4f}", flush=True)
            self.losses.clear()


def shard(model, mesh) -> None:
    """Shard the blocks and what is around them with FSDP2, as it was measured."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    low = torch.bfloat16 if SETTINGS["precision"] == "bf16" else None
    reduced = torch.bfloat16 if TRAINING["reduce_dtype"] == "bf16" else torch.float32
    inside = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduced)
    outside = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduced, cast_forward_inputs=False)
    for block in [module for module in model.modules() if type(module).__name__ in TRAINING["blocks"]]:
        fully_shard(block, mesh=mesh, mp_policy=inside, reshard_after_forward=TRAINING["sharding"] == "fsdp2")
    fully_shard(model, mesh=mesh, mp_policy=outside)


def strategy():
    """Return the strategy of the candidate's sharding."""
    if IN_SHARDS:
        return ModelParallelStrategy(data_parallel_size=SETTINGS["gpus"], tensor_parallel_size=1)
    if TRAINING["sharding"] == "ddp":
        return DDPStrategy(gradient_as_bucket_view=True, find_unused_parameters=True)
    return "auto"


def main() -> None:
    """Train from trainer.json with Lightning's Trainer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    train(parser.parse_args().steps)
    gc.collect()  # the trainer goes before the process group: gloo can wait for itself when DDP goes last
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def train(steps: int) -> None:
    """Take `steps` optimizer steps; print the loss of each."""
    lightning.seed_everything(TRAINING["seed"], verbose=False)
    if TRAINING["tf32"]:
        torch.set_float32_matmul_precision("high")
    # Named, because inside a Slurm job Lightning would take the job's tasks for the ranks that launch.sh starts.
    started = TorchElasticEnvironment() if TorchElasticEnvironment.detect() else LightningEnvironment()
    trainer = lightning.Trainer(**TRAINER, strategy=strategy(), plugins=[started], max_steps=steps)
    if trainer.world_size != SETTINGS["gpus"]:
        raise SystemExit(
            f"this would run on {trainer.world_size} device(s), but {SETTINGS['gpus']} were measured; "
            "start it with launch.sh"
        )
    with torch.device("meta"):
        config = build_model().config
    samples = steps * TRAINER["accumulate_grad_batches"] * TRAINING["micro_batch"] * SETTINGS["gpus"]
    loader = torch.utils.data.DataLoader(
        ExampleData(config, samples),
        batch_size=TRAINING["micro_batch"],
        drop_last=True,
        num_workers=TRAINING["num_workers"],
        pin_memory=TRAINING["pin_memory"],
        prefetch_factor=TRAINING["prefetch_factor"],
    )
    trainer.fit(Training(), loader)


if __name__ == "__main__":
    main()
