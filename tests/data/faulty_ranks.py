"""A user's own model whose second rank misbehaves in its second forward pass, while the first waits in a collective."""

import os
import signal
import sys
import time

import torch

from tests.data.own_model import Network, make_batch


def misbehave(fault):
    match fault:
        case "oom":
            torch.empty(1 << 40)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hangs":
            time.sleep(10_000)
        case "leaves":
            sys.stdout.flush()
            os._exit(0)


class Faulty(Network):
    fault = "none"
    passes = 0

    def forward(self, tokens, targets):
        self.passes += 1
        if self.passes == 2 and os.environ.get("RANK") == "1":
            misbehave(self.fault)
        return super().forward(tokens, targets)


def _build(fault):
    model = Faulty()
    model.fault = fault
    return model, make_batch


def fine():
    return _build("none")


def oom():
    return _build("oom")


def killed():
    return _build("killed")


def hangs():
    return _build("hangs")


def leaves():
    return _build("leaves")
