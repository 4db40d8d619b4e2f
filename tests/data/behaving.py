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
        if torch.is_grad_enabled():  # it trains; inspections and evaluations look at it without gradients
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


def wait_until_told():
    """Wait until the file is there that AUTOTUNE_GO names: until then a test may do something to this process."""
    while not os.path.exists(os.environ["AUTOTUNE_GO"]):
        time.sleep(0.05)


def waits():
    """Train when told to."""
    return Small(lambda _: wait_until_told()), batch


def leaves():
    """Train, beside a process that goes on."""

    def start(_):
        if not held:
            command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
            held.append(subprocess.Popen(command, start_new_session=True))

    return Small(start), batch


def grows():
    """Train when told to; at a micro-batch of 4 write 3 GiB that no limit of a process counts, then ask for as much."""

    def take(size):
        wait_until_told()
        time.sleep(0.05)  # whatever the size, so that larger ones are faster on however busy a machine
        if size >= 4:
            for _ in range(48):
                held.append(mmap.mmap(-1, GIB // 16))
                held[-1].write(b"x" * (GIB // 16))
                time.sleep(0.1)
            time.sleep(5)  # a scheduler that looks every second or two has seen it
            held.append(torch.empty(3 * GIB, dtype=torch.uint8))

    return Small(take), batch


def second_rank_fails():
    """Raise on rank 1 alone."""

    def fail(_):
        if os.environ["RANK"] == "1":
            raise ValueError("as told")

    return Small(fail), batch
