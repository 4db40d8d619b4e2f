"""Has torchtitan 0.3 train on a CPU, where it asks for a GPU without looking: last on PYTHONPATH, no other change.

Its device is `cuda` wherever torch has no accelerator, and its log asks the device for its name and for memory. Its
attention is torch's flex attention, which has no backward pass on a CPU: here the mask is written out for the attention
that has one. Triton, which it imports always, is stood in for by `without_triton`, from when torch has found none. And
it calls one function by the name that a later torch than 2.13 has for it. axolotl 0.19 gets that Triton too.
"""

import importlib
import os
import sys
import types

from autotune.watch.imports import after_import

HERE = os.path.dirname(os.path.abspath(__file__))
BEFORE_TRITON = (
    "torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.runtime.triton_compat",
    "torch._inductor.runtime.triton_heuristics",
)  # fmt: skip


def on_cpu(utils):
    import torch

    class Device(types.ModuleType):
        """What torch.cpu has, and what torchtitan asks of a GPU's module beside."""

        def __getattr__(self, name):
            return getattr(torch.cpu, name)

        def current_device(self):
            return 0

        def get_device_name(self, _device):
            return "CPU"

        def get_device_properties(self, _device):
            return types.SimpleNamespace(
                total_memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            )

        def memory_stats(self, _device):
            return {}

        def reset_peak_memory_stats(self):
            pass

        def empty_cache(self):
            pass

    utils.device_type, utils.device_module = "cpu", Device("torch.cpu")
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout
    with_triton(utils)


def with_triton(_module):
    for name in BEFORE_TRITON:
        importlib.import_module(name)
    sys.path.append(os.path.join(os.path.dirname(HERE), "without_triton"))


def with_backward(attention):
    from torch.nn.attention.flex_attention import create_mask
    from torch.nn.functional import scaled_dot_product_attention

    def attend(query, key, value, *, block_mask, scale, enable_gqa, **_rest):
        rows, _, length, _ = query.shape
        mask = create_mask(block_mask.mask_mod, rows, 1, length, key.shape[2], device="cpu")
        out = scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=enable_gqa)
        return out, None

    attention.FlexAttention._compiled_flex_attn = attend


after_import("torchtitan.tools.utils", on_cpu)
after_import("torchtitan.models.common.attention", with_backward)
after_import("axolotl.utils.trainer", with_triton)
