"""Train with transformers' Trainer what was measured. Start it with launch.sh.

Your own data goes into data.py; the rest of training_arguments.json is yours to extend.
"""

import argparse
import gc
import json
from pathlib import Path

import torch
from data import ExampleData
from model import SETTINGS, build_model
from transformers import Trainer, TrainingArguments, set_seed

ARGUMENTS = json.loads(Path(__file__).with_name("training_arguments.json").read_text())


def main() -> None:
    """Train from training_arguments.json with the Trainer of transformers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    train(parser.parse_args().steps)
    gc.collect()  # the trainer goes before the process group: gloo can wait for itself when DDP goes last
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def train(steps: int) -> None:
    """Take `steps` optimizer steps; the loss of each is logged."""
    arguments = TrainingArguments(**ARGUMENTS, max_steps=steps)
    check(arguments)
    set_seed(arguments.seed)
    model = build_model()
    samples = (
        steps * arguments.gradient_accumulation_steps * arguments.train_batch_size * arguments.world_size
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=ExampleData(model.config, samples))
    trainer.train()


def check(arguments: TrainingArguments) -> None:
    """Stop when the script was not launched as it was measured: on several GPUs, Trainer enlarges the batch."""
    devices = arguments.world_size * max(1, arguments.n_gpu)
    if devices != SETTINGS["gpus"]:
        raise SystemExit(
            f"this would run on {devices} device(s), but {SETTINGS['gpus']} were measured; start it with launch.sh"
        )


if __name__ == "__main__":
    main()
