"""What 8-bit products allocate, byte by byte: torch makes them on a processor too, if by copies in 32 bits."""

import pytest
import torch

from autotune.worker.build import composition
from autotune.worker.tracing import kernel_workspace
from autotune.worker.tracing.trace import trace
from tests.memory.counted import SEQ_LEN, measured, request
from tests.numerics.emulated import on_a_gpu

pytest.importorskip("torchao", reason="torchao is not installed: pip install 'autotune[torchao]'")


def emulated(args):
    """Copies in 32 bits of what a processor multiplies, of the product, and of what is scaled; and three scales."""
    left, right, dtype = args[0], args[1], args[6]
    result, given = left.shape[0] * right.shape[1], 4 * (left.numel() + right.numel())
    narrow = dtype.itemsize * result if dtype.itemsize < 4 else 0
    yield right.numel() + given + max(4 * right.numel(), 4 * result + narrow) + 24


@pytest.fixture(autouse=True)
def as_on_cuda(monkeypatch):
    """Let a processor take fp8, and torchao ask for its autocast as it does for that of CUDA."""
    monkeypatch.setattr(composition, "refused", on_a_gpu)
    asked = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device_type="cpu": asked(device_type))
    monkeypatch.setattr(torch, "get_autocast_gpu_dtype", lambda: torch.bfloat16)
    monkeypatch.setitem(kernel_workspace.ON_CPU, torch.ops.aten._scaled_mm.default, emulated)


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
def test_a_trace_counts_the_bytes_of_8_bit_products(checkpointing):
    fields = {"precision": "fp8", "checkpointing": checkpointing}
    timeline = trace(request("tiny-llama", **fields))
    for micro_batch in (1, 5):
        real = measured(request("tiny-llama", micro_batch=micro_batch, **fields))
        # Generators' contexts, as in test_trace.py.
        assert timeline.allocated(micro_batch) == pytest.approx(real, abs=2 * 5056 + 64)


def test_products_of_blocks_count_as_8_bit_ones_and_once():
    timeline = trace(request("tiny-llama", precision="fp8"))
    flops = dict.fromkeys(("fp8", "bf16"), 0)
    for phase in ("forward", "backward"):
        for operator, count in timeline.work.of(phase, 4):
            if operator.kind == "matmul":
                flops[operator.math] += operator.flops * count
    in_blocks = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176)  # weights of the linear layers of two blocks
    assert flops == {"fp8": 6 * in_blocks * 4 * SEQ_LEN, "bf16": 6 * 64 * 256 * 4 * SEQ_LEN}
