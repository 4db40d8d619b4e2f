"""Models that behave as their names say, for workers on other machines: what they do stands in their code alone."""

import mmap
import os
import subprocess
import sys
import time

import torch

GIB = 2**30
held = []


class Small(torch.nn.Module):
    """A layer with a loss."""

    def __init__(self, before=lambda size: None):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.before = before

    def forward(self, inputs):
        if self.training:
            self.before(len(inputs))
        return self.layer(inputs).square().mean()


def batch(micro_batch, seq_len):
    """Return random rows."""
    return {"inputs": torch.randn(micro_batch, 64)}


def trains():
    """Train."""
    return Small(), batch


def hangs():
    """Do nothing, from the first forward on."""
    return Small(lambda _: time.sleep(600)), batch


def waits():
    """Take some seconds for the first forward, so that a test has time to do something to it."""
    return Small(lambda _: held.append(time.sleep(6)) if not held else None), batch


def leaves():
    """Train, beside a process that goes on."""

    def start(_):
        if not held:
            command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
            held.append(subprocess.Popen(command, start_new_session=True))

    return Small(start), batch


def grows():
    """Write 4 GiB that no limit of a process counts, from a micro-batch of 4 on; wait a little at smaller ones."""

    def take(size):
        if size >= 4:
            for _ in range(64):
                held.append(mmap.mmap(-1, GIB // 16))
                held[-1].write(b"x" * (GIB // 16))
                time.sleep(0.1)
        elif not held:
            held.append(time.sleep(4))

    return Small(take), batch


def second_rank_fails():
    """Raise on rank 1 alone."""

    def fail(_):
        if os.environ["RANK"] == "1":
            raise ValueError("as told")

    return Small(fail), batch
