"""Watch a training from within, without a change to it: first on PYTHONPATH, where Python looks for this name.

AUTOTUNE_WATCHED names a folder, in which every process that took an optimizer step leaves a file when it ends: when its
steps ended, and the most that its tensors took from the first forward pass on. Nothing is imported before the program
itself imports torch.
"""

import atexit
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = os.sysconf("SC_PAGE_SIZE")


class AfterImport:
    """Calls a function with a module once, right after somebody imported it."""

    def __init__(self, name, function):
        self.name, self.function, self.asked = name, function, False

    def find_spec(self, name, _path=None, _target=None):
        """Return the module's own spec, which calls the function after it ran."""
        if name != self.name or self.asked:
            return None
        self.asked = True  # also while the others are asked for it here
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_tell(module):
            execute(module)
            self.function(module)

        spec.loader.exec_module = execute_and_tell
        return spec


class Watched:
    """One process that trains."""

    def __init__(self, folder):
        self.folder, self.ends, self.peak, self.libraries, self.first = Path(folder), [], 0, None, None

    def begin(self, optimizer):
        """Ask torch to tell of forward passes and of optimizer steps."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        self.first = register_module_forward_pre_hook(self.before_first_forward)
        optimizer.register_optimizer_step_post_hook(self.after_step)
        atexit.register(self.write)

    def before_first_forward(self, module, _arguments):
        """Take what is held beside the model's parameters for what libraries need, and count peaks from here."""
        import torch

        if not torch.is_grad_enabled() or not any(True for _ in module.parameters()):
            return
        self.first.remove()
        if torch.cuda.is_initialized():
            return
        parts = [getattr(parameter, "_local_tensor", parameter) for parameter in module.parameters()]
        held = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
        self.libraries = anonymous() - sum(held.values())
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def after_step(self, optimizer, _arguments, _options):
        """Note when a step ended, and what was held at most until then. A library may begin peaks anew in between."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())
        self.ends.append((id(optimizer), time.perf_counter()))

    def write(self):
        """Leave the file."""
        if not self.ends:
            return
        if self.libraries is not None:
            self.peak = resident_peak() - mapped() - self.libraries
        of_one = [end for which, end in self.ends if which == self.ends[-1][0]]
        text = json.dumps({"ends": of_one, "peak": self.peak})
        (self.folder / f"{os.environ.get('RANK', '0')}-{os.getpid()}.json").write_text(text)


def anonymous():
    """Return the resident bytes of this process that belong to no file."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * PAGE


def mapped():
    """Return the resident bytes of mapped files."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * PAGE


def resident_peak():
    """Return the most that was resident since peaks began, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def others():
    """Run the module of the same name that this one hides, if there is one."""
    path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "AUTOTUNE_WATCHED" in os.environ:
    sys.meta_path.insert(
        0, AfterImport("torch.optim.optimizer", Watched(os.environ["AUTOTUNE_WATCHED"]).begin)
    )
others()
