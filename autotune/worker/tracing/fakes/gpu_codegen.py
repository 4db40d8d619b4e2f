"""What torch's compiler makes for a GPU, where there is none and no Triton: its programs, without their kernels.

inductor divides, orders, fuses and plans buffers for the stand-in of `fakes.cuda` as it does for CUDA: with its own
scheduler and its own generator of Triton code, which need neither a GPU nor Triton until a kernel is compiled. None
is here. Of a fused kernel its name is kept and the bytes that it moves, by inductor's own estimate
(`SIMDKernel.estimate_kernel_num_bytes`): each tensor, or the slice of it that is used, read or written once.

Not covered: what inductor measures on a GPU before it decides (matrices padded to aligned shapes, `max-autotune`), and
choices that it makes for devices named `cuda` alone: the online softmax, where attention is computed by its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._triton
from torch import Tensor
from torch._dynamo import device_interface
from torch._inductor import async_compile, compile_fx, scheduler, utils
from torch._inductor.codegen import common
from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides
from torch._inductor.codegen.triton import TritonKernel, TritonScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from autotune.worker.replacing import replaced
from autotune.worker.tracing.fakes.autocast import NAME
from autotune.worker.tracing.fakes.triton import CAPABILITY, MULTIPROCESSORS
from autotune.worker.tracing.storage_recorder import StorageRecorder

_MOVED = "# bytes moved: "
"""Begins the line that is added to a kernel's source."""


class _Gpu(device_interface.DeviceInterface):  # type: ignore[misc]  # mypy does not follow torch
    """What the compiler asks of a GPU, with the answers of an H100 (NVIDIA's white paper)."""

    class Worker:
        """The same questions, from processes that compile; there are none."""

        @staticmethod
        def get_device_properties(device: object = None) -> SimpleNamespace:  # noqa: ARG004 - the contract
            return SimpleNamespace(
                name="stand-in",
                multi_processor_count=MULTIPROCESSORS,
                major=CAPABILITY[0],
                minor=CAPABILITY[1],
                regs_per_multiprocessor=65536,
                max_threads_per_multi_processor=2048,
                max_threads_per_block=1024,
                warp_size=32,
            )

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def get_compute_capability(device: object = None) -> int:  # noqa: ARG004 - the contract
        return 10 * CAPABILITY[0] + CAPABILITY[1]

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:  # noqa: ARG004 - the contract
        return True

    @staticmethod
    def is_triton_capable(device: object = None) -> bool:  # noqa: ARG004 - the contract
        return True


class _NoStreams(CpuDeviceOpOverrides):  # type: ignore[misc]  # mypy does not follow torch
    """What programs say of streams and of the current device: nothing, as on a processor."""

    def device_guard(self, device_idx: int) -> str:  # noqa: ARG002 - the contract
        return "__import__('contextlib').nullcontext()"  # torch 2.11's own is no context


class _Launched:
    """What stands for a kernel of Triton: it notes what it would move."""

    def __init__(self, recorder: Callable[[], StorageRecorder], name: str, moved: int) -> None:
        self._recorder, self._name, self._moved = recorder, name, moved

    def run(self, *_args: Any, **_options: Any) -> None:
        """Note one launch."""
        self._recorder().log.launched(self._name, 0, self._moved)


@contextmanager
def gpu_codegen(recorder: Callable[[], StorageRecorder]) -> Iterator[None]:
    """Let inductor compile for the stand-in while open, within `fake_cuda`.

    The kernels that programs call are noted by what `recorder` returns when they do.
    """
    _register()
    constants = torch.library.Library("aten", "IMPL")
    # The compiler folds constants of one element by computing them, on the graph's device; here the host does.
    constants.impl("empty.memory_format", _empty, "PrivateUse1")
    constants.impl("empty_strided", _empty_strided, "PrivateUse1")
    generate: Callable[..., str] = TritonKernel.codegen_kernel

    def source(kernel: TritonKernel, name: str | None = None) -> str:
        return f"{generate(kernel, name)}\n{_MOVED}{kernel.estimate_kernel_num_bytes()}\n"

    def load(_: object, name: str, source_code: str, device_str: str = NAME) -> _Launched:
        del device_str
        return _Launched(recorder, name, int(source_code.rpartition(_MOVED)[2]))

    try:
        with replaced(
            [
                (utils, "GPU_TYPES", [*utils.GPU_TYPES, NAME]),
                (scheduler, "has_triton", lambda: True),
                (torch.utils._triton, "triton_hash_with_backend", lambda: ""),  # names its cache of kernels
                (
                    PythonWrapperCodegen,
                    "write_triton_header_once",
                    PythonWrapperCodegen.write_get_raw_stream_header,
                ),
                (TritonKernel, "codegen_kernel", source),
                (async_compile.AsyncCompile, "triton", load),
                (
                    compile_fx,
                    "get_input_idxs_to_check",
                    lambda *_: (),
                ),  # whose addresses are aligned: these have none
            ]
        ):
            yield
    finally:
        constants._destroy()


def _register() -> None:
    """Make the stand-in known to the compiler; it stays known, as to torch, for as long as the process lives."""
    device_interface.register_interface_for_device(NAME, _Gpu)
    device_interface.register_interface_for_device(f"{NAME}:0", _Gpu)
    common.init_backend_registration()
    common.register_backend_for_device(NAME, TritonScheduling, PythonWrapperCodegen)
    common.get_device_op_overrides("cpu")  # torch registers its own at the first question
    common.register_device_op_overrides(NAME, _NoStreams())


def _empty(size: list[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.empty(size, dtype=dtype)


def _empty_strided(
    size: list[int], stride: list[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)
