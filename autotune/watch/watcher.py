"""Watch a training from within, without a change to its code: steps, batches, phases, memory, and refusals of it.

The standard library alone, for any Python from 3.8 on. Torch's own global hooks tell of optimizer steps and of the
module that is called first under grad, whose forward passes are the micro-steps (backward calls mislead: a chunked loss
makes dozens). What was seen is written as one JSON file a process, before that ends; where it is at any moment stands
in a small mapped file, which outlives a kill.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import mmap
import os
import struct
import sys
import threading
import time
from typing import Any

from autotune.watch.failures import Failures
from autotune.watch.files import WrittenFiles
from autotune.watch.imports import after_import
from autotune.watch.memory import MemoryPeaks, loaders
from autotune.watch.stopping import WARM_UP, Stopping, write_whole
from autotune.watch.tensors import batch, number_types, own_module, size, total_loss

FOLDER = "AUTOTUNE_WATCH"
"""Variable that says where the records go; without it nothing is watched."""
ASKED = "AUTOTUNE_WATCH_ASKED"
"""Variable with what is asked, in JSON: `steps` (at most; 0 never stops), `seconds`, `most_micro_steps`, and `scratch`,
folders in which files are expected."""
PHASES = ("start", "build", "forward", "backward", "optimizer", "evaluation", "save")
"""As `autotune.outcome.Phase` has them; the mapped file holds the place in this list."""
STATE = struct.Struct("<IIII")
"""What the mapped file holds: phase, optimizer steps, micro-steps since the last, process id."""
KEPT = 64
"""Optimizer steps that are kept one by one."""

_watch: Watch | None = None


def install() -> None:
    """Watch this process, if a probe asks for it by its environment; once."""
    global _watch
    if _watch is None and os.environ.get(FOLDER):
        _watch = Watch(os.environ[FOLDER], json.loads(os.environ.get(ASKED, "{}")))
        _watch.begin()
        os.register_at_fork(after_in_child=_forget)  # loader workers train nothing


def report_step(samples: int | None = None, tokens: int | None = None, loss: float | None = None) -> None:
    """Say that one optimizer step is done, where no torch optimizer shows it. Nothing happens outside of a probe."""
    if _watch is not None:
        _watch.reported(samples, tokens, loss)


def _forget() -> None:
    global _watch
    if _watch is not None:
        _watch.active = False
    _watch = None


class Watch:
    """What is known of one process, from the import of torch to its end."""

    def __init__(self, folder: str, asked: dict[str, Any]) -> None:
        self.active = True
        self._folder = folder
        self._stopping = Stopping(folder, int(asked.get("steps", 0)), float(asked.get("seconds", 0.0)))
        self._most = int(asked.get("most_micro_steps", 0))
        self._files = WrittenFiles([folder, *asked.get("scratch", ())])
        self._torch: Any = None
        self._memory = MemoryPeaks()
        self._began = time.monotonic()
        self._phase = "start"
        self._root: Any = None
        self._looking: Any = None
        self._building: Any = None
        self._counts: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._steps = 0
        self._micro: list[tuple[float, int | None, int | None, bool]] = []
        self._losses: list[Any] = []
        self._records: list[dict[str, Any]] = []
        self._entered: float | None = None
        self._left: float | None = None
        self._failures = Failures()
        self._written = False
        self._activations = 0
        self._parts: dict[str, int] = {}
        self._types: dict[str, Any] = {}
        self._by_hand = False
        with open(os.path.join(folder, f"state-{os.getpid()}"), "wb+") as file:
            file.truncate(STATE.size)
            self._state = mmap.mmap(file.fileno(), STATE.size)

    def begin(self) -> None:
        """Wait for torch, and for the end of the process."""
        self._tell()
        after_import("torch.optim.optimizer", self._hook)
        before = sys.excepthook

        def hook(kind: Any, error: Any, trace: Any) -> None:
            if self.active:
                self._failures.end(error, self._torch, self._phase, self._memory.free())
                self._write("exception")
            before(kind, error, trace)

        sys.excepthook = hook
        # Before Python waits for other threads, of which one may never end; atexit would be told after.
        at_exit = getattr(threading, "_register_atexit", atexit.register)
        at_exit(lambda: self._write("end") if self.active else None)

    def reported(self, samples: int | None, tokens: int | None, loss: float | None) -> None:
        """Take an optimizer step that the program itself tells of."""
        if not self.active:
            return
        self._by_hand = True
        if samples is not None or not self._micro:
            before = self._began if self._left is None else self._left
            self._micro = [(before, samples, samples if tokens is None else tokens, True)]
        if loss is not None:
            self._losses = [loss]
        self._step_done()

    # What torch calls.

    def _hook(self, optimizer: Any) -> None:
        if not self.active:
            return
        self._torch = sys.modules["torch"]
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        modules: Any = sys.modules["torch.nn.modules.module"]
        self._looking = modules.register_module_forward_pre_hook(self._look)
        if hasattr(modules, "register_module_parameter_registration_hook"):
            self._building = modules.register_module_parameter_registration_hook(self._build)
        autograd: Any = sys.modules["torch.autograd"]
        own = autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return own(*args, **kwargs)
            self._enter("backward")
            self._note_loss(args[0] if args else kwargs.get("tensors"))
            self._activations = max(self._activations, self._memory.held(self._torch))
            try:
                return own(*args, **kwargs)
            except BaseException as error:
                self._note_refusal(error)
                raise

        autograd.backward = backward

    def _build(self, _module: Any, _name: Any, _parameter: Any) -> None:
        """At the first parameter, what the process holds is interpreter and libraries."""
        if self._building is not None:
            self._building.remove()
            self._building = None
            self._memory.begin()
            self._enter("build")

    def _look(self, module: Any, args: Any) -> None:
        """Of all modules, the first that is called under grad is the one that trains."""
        if not self.active or self._root is not None or not self._torch.is_grad_enabled():
            return
        self._looking.remove()
        self._root = module
        self._memory.begin_training(size(self._torch, module.parameters()))
        frame = sys._getframe(1)
        while frame is not None and "kwargs" not in frame.f_locals:  # global hooks get no keyword arguments
            frame = frame.f_back  # type: ignore[assignment]
        self._forward(module, args, frame.f_locals["kwargs"] if frame is not None else {})
        module.register_forward_pre_hook(self._forward, with_kwargs=True)
        module.register_forward_hook(self._forward_done, always_call=True)

    def _forward(self, module: Any, args: Any, kwargs: Any) -> None:
        if not self.active or not self._torch.is_grad_enabled():
            return
        if self._failures.refusals:
            self._stop("swallowed_oom")  # somebody caught it, and goes on with something else than was asked
        self._micro.append((time.monotonic(), *batch((args, kwargs))))
        self._enter("forward")
        if not self._types:
            self._types = number_types(self._torch, module)
        if self._most and len(self._micro) > self._most:
            self._stop("no_step")

    def _forward_done(self, _module: Any, _args: Any, _output: Any) -> None:
        error = sys.exc_info()[1]  # this hook is called in the handler of what the forward pass raised
        if self.active and error is not None and self._phase == "forward":
            self._note_refusal(error)

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.active and self._entered is None:
            self._synchronize()
            self._entered = time.monotonic()
            self._enter("optimizer")
            if self._steps < WARM_UP:
                self._parts["gradients"] = size(self._torch, (one.grad for one in self._parameters()))

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self.active:
            return
        key = id(optimizer)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._names[key] = type(optimizer).__name__
        if self._counts[key] <= self._steps:  # another optimizer of the same global step
            return
        if self._root is not None and not self._micro and self._steps:
            # An engine that updates in several calls, a group of parameters each.
            self._counts[key] -= 1
            self._records[-1]["optimizer"] += time.monotonic() - (self._left or self._began)
            self._left, self._entered = time.monotonic(), None
            return
        if self._steps < WARM_UP:
            kept = (
                value
                for state in optimizer.state.values()
                if hasattr(state, "values")
                for value in state.values()
            )
            self._parts["optimizer_state"] = size(self._torch, kept)
        self._step_done()

    # Steps.

    def _step_done(self) -> None:
        self._synchronize()
        now = time.monotonic()
        self._steps += 1
        self._memory.look(self._torch)
        times = [entry[0] for entry in self._micro] or [now]
        entered = now if self._entered is None else self._entered
        if len(self._records) < KEPT:
            self._records.append(
                {
                    "wait": max(0.0, times[0] - self._left) if self._left is not None else 0.0,
                    "micro_steps": len(self._micro),
                    "samples": sum(entry[1] or 0 for entry in self._micro),
                    "tokens": sum(entry[2] or 0 for entry in self._micro),
                    "whole_numbers": bool(self._micro) and all(entry[3] for entry in self._micro),
                    "others": [after - before for before, after in zip(times, times[1:])],  # noqa: B905, RUF007
                    "last": max(0.0, entered - times[-1]),
                    "optimizer": max(0.0, now - entered),
                    "loss": self._losses,
                }
            )
        self._left = now
        self._entered = None
        self._micro, self._losses = [], []
        self._enter("forward")
        if self._stopping.is_due(self._steps, self._rank(), self._records[-1]):
            self._stop("stopped")

    def _stop(self, ended: str) -> None:
        """End this process at once, with nothing run that the program has for its end: no checkpoint, no evaluation."""
        self._write(ended)
        distributed: Any = sys.modules.get("torch.distributed")
        if ended == "stopped" and distributed and distributed.is_available() and distributed.is_initialized():
            distributed.barrier()  # else the first to leave breaks the others' collectives
        if "multiprocessing" in sys.modules:
            for child in sys.modules["multiprocessing"].active_children():
                child.kill()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)  # SystemExit would run `finally:` and save, and a bare `except:` swallows it

    # What failed.

    def _note_refusal(self, error: BaseException) -> None:
        if self._failures.note_refusal(error, self._torch, self._phase, self._steps + 1, self._memory.free()):
            self._write("refused")  # a process that multiprocessing started ends without a word
            self._written = False

    # What was seen.

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._tell()

    def _tell(self) -> None:
        STATE.pack_into(self._state, 0, PHASES.index(self._phase), self._steps, len(self._micro), os.getpid())

    def _parameters(self) -> list[Any]:
        return list(self._root.parameters()) if self._root is not None else []

    def _synchronize(self) -> None:
        if self._torch is not None and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _note_loss(self, tensors: Any) -> None:
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if len(self._records) < KEPT and hasattr(first, "detach") and first.numel() == 1:
            self._losses.append(first.detach())

    def _rank(self) -> int:
        return int(os.environ.get("RANK") or self._distributed("get_rank", 0))

    def _distributed(self, what: str, default: int) -> int:
        module: Any = sys.modules.get("torch.distributed")
        if module is not None and module.is_available() and module.is_initialized():
            return int(getattr(module, what)())
        return default

    def _write(self, ended: str) -> None:
        """Write what was seen, once: of several ends the first is the one that counts."""
        if self._written or not os.path.isdir(self._folder):
            return
        self._written = True
        torch = self._torch
        self._memory.look(torch)
        trained = self._parameters()
        transformers: Any = sys.modules.get("transformers")
        record = {
            "pid": os.getpid(),
            "program": sys.argv[0] if sys.argv else "",
            "rank": self._rank(),
            "world": int(os.environ.get("WORLD_SIZE") or self._distributed("get_world_size", 1)),
            "ended": ended,
            "torch": str(torch.__version__) if torch is not None else None,
            "transformers": str(transformers.__version__) if hasattr(transformers, "__version__") else None,
            "phase": self._phase,
            "steps": self._steps,
            "open": [list(entry[1:]) for entry in self._micro[:KEPT]],
            "by_hand": self._by_hand,
            "model": type(own_module(self._root)).__name__ if self._root is not None else None,
            "parameters": sum(one.numel() for one in trained),
            "trainable": sum(one.numel() for one in trained if one.requires_grad),
            "parts": {"parameters": size(torch, trained), **self._parts} if trained else self._parts,
            "activations": self._activations,
            "number_types": self._types,
            "optimizers": sorted([self._names[key], count] for key, count in self._counts.items()),
            "records": [{**one, "loss": total_loss(one["loss"])} for one in self._records],
            "ooms": self._failures.refusals,
            "error": self._failures.error,
            "memory": self._memory.totals(torch),
            "loaders": loaders(),
            "written": self._files.left(),
            "seconds": time.monotonic() - self._began,
            "since": time.monotonic(),
        }
        write_whole(os.path.join(self._folder, f"process-{os.getpid()}.json"), json.dumps(record))
