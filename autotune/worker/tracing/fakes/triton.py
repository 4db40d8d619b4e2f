"""liger-kernel on fake tensors: its Python code runs, which makes all tensors, and its kernels do nothing.

A kernel of Triton is handed every tensor that it writes, so what its caller allocates is all that there is. On top of
it come the answers that liger-kernel's code gets from a GPU: that tensors are on CUDA, how many multiprocessors it
has, what it can compute. What a kernel moves is taken from its arguments.

liger-kernel makes logits in chunks, whose rows it rounds up to a power of two; that is not affine in the micro-batch.
Here a chunk has the rows that it can have at most, twice as many as unrounded: where the peak is in the loss, it is
told too high by one hidden state at most (in 16 bits under autocast). Where a sequence is so short that rounding shows
all the same, the trace holds for one micro-batch alone. Not covered: its mixtures of experts, which read a number of
tiles from the device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from autotune.environment import how_to_install
from autotune.worker.errors import CannotRun
from autotune.worker.replacing import replaced
from autotune.worker.tracing.fakes.autocast import NAME
from autotune.worker.tracing.storage_recorder import StorageRecorder

MULTIPROCESSORS = 132
"""Of an H100 (NVIDIA's white paper). Backward passes of norms keep a row of sums for each until they are added: 2 MiB
for a width of 4096."""
CAPABILITY = (9, 0)
"""liger-kernel asks whether products of 16-bit numbers add up in 32 bits: from 8.0 on, where bf16 is too."""
AGAIN: Mapping[str, Mapping[str, int]] = {
    "_triton_rope": {"q_ptr": 1, "k_ptr": 1},
    "_swiglu_backward_kernel": {"a_ptr": 1, "b_ptr": 1},
    "_swiglu_backward_kernel_tiled": {"a_ptr": 1, "b_ptr": 1},
    "_geglu_tanh_backward_kernel": {"a": 1, "b": 1},
    "liger_cross_entropy_kernel": {"X_ptr": 2},
    "element_mul_kernel": {"X_ptr": 1},
}
"""How often kernels move arguments beyond the first time: those that they write over, and logits, which they read to
find the sum of their exponentials and once more to divide by it (liger-kernel 0.8.5)."""
CHUNKED = "liger_kernel.ops.fused_linear_cross_entropy"


def fake_triton(recorder: StorageRecorder) -> AbstractContextManager[None]:
    """Let kernels do nothing while open; what they would move goes to the recorder's log.

    liger-kernel must have been imported. Raises CannotRun where Triton is not installed.
    """
    try:
        from triton.runtime import Autotuner, Heuristics, JITFunction
    except ImportError as error:
        raise CannotRun(
            "kernels", "package", f"liger's kernels need Triton ({error}): {how_to_install('liger-kernel')}"
        ) from error

    def launch(kernel: Any, *args: Any, **options: Any) -> None:
        while not isinstance(kernel, JITFunction):  # what chooses a configuration for the kernel within
            kernel = kernel.fn
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **options}
        again = AGAIN.get(kernel.__name__, {})
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        moved = sum((1 + again.get(name, 0)) * value.nbytes for name, value in tensors.items())
        elements = max((value.numel() for value in tensors.values()), default=0)
        recorder.log.launched(kernel.__name__, elements, moved)

    changes: list[tuple[Any, str, Any]] = [
        (kind, "run", launch) for kind in (JITFunction, Autotuner, Heuristics)
    ]
    for name, module in list(sys.modules.items()):
        if name.startswith("liger_kernel.ops."):
            changes += _on_a_gpu(module)
    if CHUNKED in sys.modules:
        changes.append((sys.modules[CHUNKED], "triton", _LargestChunks))
    return replaced(changes)


def _on_a_gpu(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """Let a module ask the stand-in for torch; and ask for its device, where it asks for "cuda"."""
    if vars(module).get("torch") is torch:
        yield module, "torch", _Torch()
    for function in vars(module).values():
        if not isinstance(function, FunctionType) or function.__module__ != module.__name__:
            continue
        constants = function.__code__.co_consts
        if "cuda" in constants:
            there = tuple(NAME if constant == "cuda" else constant for constant in constants)
            yield function, "__code__", function.__code__.replace(co_consts=there)


class _Torch:
    """torch, for liger-kernel alone, with the answers of a GPU."""

    cuda = SimpleNamespace(
        get_device_capability=lambda *_: CAPABILITY,
        get_device_properties=lambda *_: SimpleNamespace(multi_processor_count=MULTIPROCESSORS),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def equal(self, *_: Tensor) -> bool:
        """Say that a gradient is not 1: then it is multiplied by, in place."""
        return False

    def tensor(self, data: Any, *, device: torch.device, **options: Any) -> Tensor:
        """Make it elsewhere: backward has a thread of its own, where fake tensors do not see to that."""
        return torch.tensor(data, **options).to(device)


class _Quotient(int):
    """A quotient, rounded up, that knows what it is of."""

    number: int
    divisor: int


class _LargestChunks:
    """What liger-kernel's loss asks Triton to divide tokens into chunks."""

    @staticmethod
    def cdiv(number: int, divisor: int) -> int:
        quotient = _Quotient(-(-number // divisor))
        quotient.number, quotient.divisor = number, divisor
        return quotient

    @staticmethod
    def next_power_of_2(number: int) -> int:
        """Return nearly twice a quotient: half as many chunks, whose count the micro-batch does not change."""
        if not isinstance(number, _Quotient):
            return number  # the width of a kernel's block
        chunks = -(-number.divisor // 2)
        return -(-number.number // chunks)
