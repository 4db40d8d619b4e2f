"""Write what a training really ran, seen from outside by torch's global hooks: first on PYTHONPATH, no other change.

AUTOTUNE_SEEN names a folder, in which each process that took an optimizer step leaves a file. AUTOTUNE_INSIDE names the
class of the module, one in each block, whose calls are counted. A sitecustomize that this one hides is run too.
"""

import atexit
import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from autotune.watch.imports import after_import


class Seen:
    """What one process did, by optimizer step."""

    def __init__(self, folder, inside):
        self.folder, self.inside = Path(folder), inside
        self.calls, self.steps, self.wrappers = [], [], set()

    def watch(self, optimizer):
        from torch.nn.modules import module

        module.register_module_forward_pre_hook(self.before_forward)
        optimizer.register_optimizer_step_post_hook(self.after_step)
        atexit.register(self.write)

    def before_forward(self, module, arguments):
        name = type(module).__name__
        if name.startswith(("DistributedDataParallel", "DeepSpeedEngine", "FSDP")):
            self.wrappers.add("FSDP2" if name.startswith("FSDP") else name)
        # FSDP2 names what it shards anew: FSDPGPT2MLP
        if name == self.inside:
            weight = next(module.parameters())
            self.calls.append([*arguments[0].shape[:2], str(weight.dtype)])

    def after_step(self, optimizer, _arguments, _options):
        if self.steps and not self.calls:
            return  # of what holds the optimizer that stepped: torchtitan's container
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        local = [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]
        self.steps.append({
            "calls": self.calls,
            "optimizer": type(optimizer).__name__,
            "fused": bool(optimizer.defaults.get("fused")),
            "dtypes": sorted({str(parameter.dtype) for parameter in parameters}),
            "numbers": sum(part.numel() for part in local),
            "sharded": any(hasattr(parameter, "_local_tensor") for parameter in parameters),
        })  # fmt: skip
        self.calls = []

    def write(self):
        if self.steps:
            threads = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
            text = json.dumps({
                "steps": self.steps,
                "wrappers": sorted(self.wrappers),
                "of_groups": [name for name in threads if "gloo" in name],
            })  # fmt: skip
            (self.folder / f"{os.environ.get('RANK', '0')}.json").write_text(text)


if "AUTOTUNE_SEEN" in os.environ:
    seen = Seen(os.environ["AUTOTUNE_SEEN"], os.environ["AUTOTUNE_INSIDE"])
    after_import("torch.optim.optimizer", seen.watch)

here = Path(__file__).parent
hidden = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path).absolute() != here])
if hidden is not None:
    hidden.loader.exec_module(module_from_spec(hidden))
