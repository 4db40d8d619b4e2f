"""Records as the watch writes them, for verdicts without a process."""

from autotune.probe.exit import Exit, Report
from autotune.probe.protocol import Progress
from autotune.script.watched import CommandEnd, Watched, WatchedLaunch

MIB = 2**20


def step(micro_steps=2, samples=8, tokens=1024, loss=1.0):
    return {
        "wait": 0.001, "micro_steps": micro_steps, "samples": samples, "tokens": tokens, "whole_numbers": True,
        "others": [0.1] * (micro_steps - 1), "last": 0.09, "optimizer": 0.01, "loss": loss,
    }  # fmt: skip


def watched(**own):
    given = {
        "pid": 7, "program": "train.py", "rank": 0, "world": 1, "ended": "stopped", "torch": "2.13.0",
        "transformers": None, "phase": "forward", "steps": 6, "open": [], "by_hand": False, "model": "Net",
        "parameters": 10, "trainable": 10,
        "parts": {"parameters": 40, "gradients": 40, "optimizer_state": 80}, "activations": 30 * MIB,
        "number_types": {"parameters": ["float32"], "autocast": "bfloat16"}, "optimizers": [["AdamW", 6]],
        "records": [step()] * 6, "ooms": [], "error": None,
        "memory": {"baseline": 100 * MIB, "peak": 150 * MIB, "data": 160 * MIB}, "loaders": None, "seconds": 2.0,
        "since": 5.0,
    }  # fmt: skip
    return Watched.model_validate({**given, **own})


def refused(phase="forward"):
    return {
        "phase": phase,
        "step": 3,
        "requested": 512,
        "free": 100,
        "message": "DefaultCPUAllocator: can't allocate",
    }


def error(kind="RuntimeError", message="bad", refused=False, phase="forward"):
    return {
        "kind": kind, "message": message, "phase": phase, "refused": refused, "requested": 512 if refused else None,
        "free": 3, "traceback": "Traceback: bad",
    }  # fmt: skip


def seen(*processes, **end):
    return WatchedLaunch(processes=processes, end=CommandEnd(**{"exit_code": 0, **end}))


def report(phase="forward", at=3, **ending):
    return Report(
        progress=Progress(phase=phase, step=at), ending=Exit(exit_code=0, seconds=9.0, **ending), seconds=9.0,
        stderr_tail="the end",
    )  # fmt: skip
