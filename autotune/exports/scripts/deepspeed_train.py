"""Train with DeepSpeed's engine what was measured. Start it with launch.sh.

Your own data goes into data.py; the learning rate, its schedule, evaluation and checkpoints are yours to choose. What
sets memory stands in deepspeed.json.
"""

import argparse
import gc
import json
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: it would keep that for good, as a default
from data import ExampleData
from model import SETTINGS, build_model

FOLDER = Path(__file__).parent
TRAINING = json.loads((FOLDER / "training.json").read_text())
CONFIG = json.loads((FOLDER / "deepspeed.json").read_text())
KERNEL = {TRAINING["optimizer_kernel"]: True}  # fused or foreach, of torch's own optimizers

# torch's optimizers over DeepSpeed's flat shards, as they were measured: nothing has to be compiled for them.
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.01, **KERNEL),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **KERNEL),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, **KERNEL),
}


def main() -> None:
    """Train from deepspeed.json with DeepSpeed's engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    steps = parser.parse_args().steps
    on_gpu = torch.cuda.is_available()
    if "RANK" not in os.environ:  # one rank, started without a launcher
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        os.environ.setdefault("MASTER_PORT", "29500")
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo's collectives, as measured
    dist.init_process_group("nccl" if on_gpu else "gloo")
    check()
    train(steps)
    gc.collect()  # the engine goes before the process group
    deepspeed.comm.destroy_process_group()  # DeepSpeed's own: torch's leaves the groups that it remembers


def train(steps: int) -> None:
    """Take `steps` optimizer steps; print the loss of each."""
    torch.manual_seed(TRAINING["seed"])
    if TRAINING["tf32"]:
        torch.set_float32_matmul_precision("high")
    model = build_model()
    if TRAINING["kernels"] == "liger":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance  # pip install liger-kernel

        _apply_liger_kernel_to_instance(model=model)
    if TRAINING["checkpointing"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = OPTIMIZERS[TRAINING["optimizer"]](model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=CONFIG, dist_init_required=False
    )
    micro_batch, micro_steps = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    data = ExampleData(model.config, steps * CONFIG["train_batch_size"])
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(data, range(dist.get_rank(), len(data), dist.get_world_size())),
        batch_size=micro_batch,
        drop_last=True,
        num_workers=TRAINING["num_workers"],
        pin_memory=TRAINING["pin_memory"],
        prefetch_factor=TRAINING["prefetch_factor"],
    )
    losses = []
    for index, batch in enumerate(loader):
        loss = engine(**{name: placed(value, engine) for name, value in batch.items()}).loss
        engine.backward(loss)
        engine.step()  # updates after the last of `micro_steps`, and does nothing before
        losses.append(loss.detach().float())
        if (index + 1) % micro_steps == 0:
            mean = torch.stack(losses).mean()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"loss {mean.item() / dist.get_world_size():.4f}", flush=True)
            losses.clear()
    engine.destroy()


def placed(value: torch.Tensor, engine) -> torch.Tensor:
    """Return a batch's tensor on the device; what is no index, in the type that DeepSpeed cast the model to."""
    low = CONFIG["bf16"]["enabled"] and value.is_floating_point()
    return value.to(engine.device, torch.bfloat16 if low else None)


def check() -> None:
    """Stop when the script was not launched as it was measured."""
    if dist.get_world_size() != SETTINGS["gpus"]:
        raise SystemExit(
            f"this would run on {dist.get_world_size()} rank(s), but {SETTINGS['gpus']} were measured; "
            "start it with launch.sh"
        )


if __name__ == "__main__":
    main()
