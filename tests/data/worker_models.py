"""Models of a user's own, each with one fault: `worker_models:NAME`."""

import ctypes
import os

import torch
from torch import nn


class Faulty(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.fault = fault

    def forward(self, x):
        loss = self.linear(x).square().mean()
        match self.fault:
            case "raise":
                raise ValueError("a bug of mine")
            case "exit":
                raise SystemExit(3)
            case "wrap":
                try:
                    torch.empty(2**50)
                except RuntimeError as error:
                    raise ValueError("the library says something else") from error
            case "die":
                ctypes.string_at(0)
            case "nan":
                return loss * float("nan")
            case "steep":  # a finite loss whose gradient is not
                return (loss * 0).sqrt()
        return loss


def make(fault):
    return Faulty(fault), lambda micro_batch, seq_len: {"x": torch.ones(micro_batch, seq_len, 8)}


def raising():
    return make("raise")


def exiting():
    return make("exit")


def wrapping():
    return make("wrap")


def dying():
    return make("die")


def nan():
    return make("nan")


def steep():
    return make("steep")


class Hungry:
    """A dataset whose every sample takes more memory than the probe has left, in worker processes."""

    def __init__(self):
        self.probe = os.getpid()

    def __len__(self):
        return 64

    def __getitem__(self, index):
        room = torch.ones(8 if os.getpid() == self.probe else 100 * 2**20)  # 400 MiB
        return {"x": room[:8].clone()}


def loading():
    return Faulty("none"), Hungry()
