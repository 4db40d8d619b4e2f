"""Run an exported train.py and write what really ran, seen from outside by torch's global hooks.

    python observe.py RESULT [arguments of train.py]

Started in place of train.py, beside it; each rank writes RESULT.<rank>.json.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

sys.path.insert(0, os.getcwd())
result = Path(sys.argv.pop(1))
seen = {
    "blocks": [],
    "precisions": [],
    "parameters": [],
    "optimizer_steps": 0,
    "optimizer": None,
    "states": 0,
    "views": None,
}


def before_forward(module, arguments):
    # Part of every block, and inside what any checkpointing runs again; that run may stop before its end.
    if type(module).__name__ == "GPT2MLP":
        seen["blocks"].append(list(arguments[0].shape[:2]))


def after_forward(module, _arguments, output):
    name = type(module).__name__
    if name in ("Conv1D", "Linear"):
        seen["precisions"] = sorted({*seen["precisions"], str(output.dtype)})
        seen["parameters"] = sorted({*seen["parameters"], str(module.weight.dtype)})
    if name == "DistributedDataParallel":
        seen["views"] = module.gradient_as_bucket_view


def after_step(optimizer, _arguments, _options):
    seen["optimizer_steps"] += 1
    seen["optimizer"] = type(optimizer).__name__
    seen["fused"] = optimizer.defaults.get("fused")
    seen["states"] = len(optimizer.state)


register_module_forward_pre_hook(before_forward)
register_module_forward_hook(after_forward)
register_optimizer_step_post_hook(after_step)

import train  # noqa: E402  the hooks come first

train.main()

from accelerate.state import AcceleratorState  # noqa: E402  not before the script itself does

if AcceleratorState._shared_state:
    state = AcceleratorState()
    seen |= {
        "processes": state.num_processes,
        "distributed": state.distributed_type.value,
        "mixed_precision": state.mixed_precision,
        "device": str(state.device),
    }
seen["variable"] = os.environ.get("MALLOC_TOP_PAD_")
ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
seen["ranks"] = {name: os.environ[name] for name in ranks if name in os.environ}
seen["threads"] = torch.get_num_threads()
(result.parent / f"{result.name}.{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seen))
