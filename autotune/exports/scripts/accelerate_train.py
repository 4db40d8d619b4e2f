"""Train with accelerate what was measured. Start it with launch.sh.

Your own data goes into data.py; the learning rate, its schedule, evaluation and checkpoints are yours to choose.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from data import ExampleData
from model import SETTINGS, build_model
from transformers import Adafactor

TRAINING = json.loads(Path(__file__).with_name("training.json").read_text())
KERNEL = {TRAINING["optimizer_kernel"]: True}  # fused or foreach, of torch's own optimizers


def adamw_8bit(parameters):
    """Return bitsandbytes' AdamW with its state in 8 bits, at the learning rate that was measured with."""
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


def main() -> None:
    """Train from training.json with accelerate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    train(parser.parse_args().steps)


def train(steps: int) -> None:
    """Take `steps` optimizer steps; print the loss of each."""
    handlers = [in_blocks()] if SETTINGS["precision"] == "fp8" else []
    if TRAINING["sharding"] == "ddp":
        # As it was measured: gradients are views of what is sent, no copies beside it.
        handlers.append(
            DistributedDataParallelKwargs(gradient_as_bucket_view=True, find_unused_parameters=True)
        )
    accelerator = Accelerator(kwargs_handlers=handlers)
    check(accelerator)
    set_seed(TRAINING["seed"])
    if TRAINING["tf32"]:
        torch.set_float32_matmul_precision("high")
    take_steps(accelerator, steps)
    accelerator.free_memory()  # before the process group goes: gloo can wait for itself when DDP goes last
    accelerator.end_training()


def take_steps(accelerator: Accelerator, steps: int) -> None:
    """Build everything and train; nothing of it is left on return."""
    model = build_model().to(accelerator.device)
    if TRAINING["kernels"] == "liger":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance  # pip install liger-kernel

        _apply_liger_kernel_to_instance(model=model)
    if TRAINING["checkpointing"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    samples = steps * TRAINING["accumulation_steps"] * TRAINING["micro_batch"] * accelerator.num_processes
    loader = torch.utils.data.DataLoader(
        ExampleData(model.config, samples),
        batch_size=TRAINING["micro_batch"],
        drop_last=True,
        num_workers=TRAINING["num_workers"],
        pin_memory=TRAINING["pin_memory"],
        prefetch_factor=TRAINING["prefetch_factor"],
    )
    optimizer = OPTIMIZERS[TRAINING["optimizer"]](model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    micro_steps, losses, viewed = TRAINING["accumulation_steps"], [], False
    for index, batch in enumerate(loader):
        last = (index + 1) % micro_steps == 0
        # Ranks reduce gradients in the last micro-step; once in the first of all too, which makes them the views.
        with nullcontext() if last or not viewed else accelerator.no_sync(model):
            loss = model(**batch).loss
            accelerator.backward(loss / micro_steps)
        viewed = True
        losses.append(loss.detach())
        if last:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=TRAINING["sharding"] != "ddp")  # views stay views
            mean = accelerator.reduce(torch.stack(losses).mean(), reduction="mean")
            accelerator.print(f"loss {mean.item():.4f}")
            losses.clear()


def in_blocks():
    """Return the recipe by which the linear layers of the repeated blocks multiply in 8 bits, and no others."""
    from accelerate.utils import AORecipeKwargs
    from torchao.float8 import Float8LinearConfig  # pip install torchao

    with torch.device("meta"):
        model = build_model()
    inside = [
        f"{name}." for name, module in model.named_modules() if type(module).__name__ in TRAINING["blocks"]
    ]

    def chosen(module: torch.nn.Module, name: str) -> bool:
        return isinstance(module, torch.nn.Linear) and name.startswith(tuple(inside))

    return AORecipeKwargs(config=Float8LinearConfig(), module_filter_func=chosen)


def check(accelerator: Accelerator) -> None:
    """Stop when the script was not launched as it was measured: accelerate falls back without a word."""
    precision = SETTINGS["precision"] if SETTINGS["precision"] in {"bf16", "fp16", "fp8"} else "no"
    asked = (SETTINGS["gpus"], precision)
    found = (accelerator.num_processes, accelerator.mixed_precision)
    if asked != found:
        raise SystemExit(
            f"this runs {found[0]} process(es) with mixed precision {found[1]!r}, but {asked[0]} with {asked[1]!r} "
            "were measured; start it with launch.sh"
        )


if __name__ == "__main__":
    main()
