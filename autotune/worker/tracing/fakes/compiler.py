"""torch's compiler for traces: it divides, fuses and plans buffers as ever, and makes no kernel.

What a compiled block allocates is written in the program that inductor generates: a function that makes buffers,
calls kernels and releases buffers. Here the compiler makes that program of fake tensors, with the same graphs, the same
choice of what is kept for backward and the same fusions; and the program runs on the recorder's fake tensors, where a
kernel writes nothing. So buffers come and go as they do in a probe.

For a GPU `fakes.gpu_codegen` makes the stand-in known to inductor. Not covered: what the compiler itself takes of the
host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _disable_current_modes

from autotune.worker.replacing import replaced
from autotune.worker.techniques import compilation
from autotune.worker.tracing.storage_recorder import StorageRecorder

SIZES = 4
"""Micro-batches that one trace runs at most, each of which is compiled for itself, as it is in a probe."""


class GraphBreak(Exception):
    """The compiler does not take a block, or not as one graph; says why, in torch's words."""


class Kernel:
    """What stands for a fused kernel: it moves the bytes of its arguments, and nothing else is known of it."""

    def __init__(self, recorder: StorageRecorder) -> None:
        self._recorder = recorder

    def __call__(self, *args: Any) -> None:
        """Record the bytes of the arguments as moved by one fused kernel."""
        self._recorder.log.fused([value for value in args if isinstance(value, Tensor)])


@contextmanager
def fake_compiler(recorder: StorageRecorder, on_gpu: bool = False) -> Iterator[None]:
    """Let blocks that are compiled within be compiled for the recorder. Enter it before the recorder.

    Every shape is compiled for itself, as in a probe, which sees one. Nothing is kept: what is compiled here would be
    found by a real training in the same process. A buffer is released where it was used last instead of serving again,
    which depends on sizes that happen to agree; inductor lets none serve again that would make the peak higher. Raises
    GraphBreak at the end if a block was divided, or was not compiled, with torch's own reason.
    """
    import torch._inductor.compile_fx  # here: a first import must not happen on fake tensors
    from torch._dynamo import config as dynamo
    from torch._dynamo.exc import TorchDynamoException
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch
    from torch._inductor import async_compile, codecache
    from torch._inductor import config as inductor

    def load(
        key: str, path: str, linemap: Any = None, attrs: dict[str, Any] | None = None, **_: Any
    ) -> ModuleType:  # as torch calls it
        del linemap
        return _program(recorder, key, path, attrs or {})

    def kernel(*_: Any, **__: Any) -> Kernel:
        return Kernel(recorder)

    if on_gpu:
        from autotune.worker.tracing.fakes.gpu_codegen import gpu_codegen

        target: AbstractContextManager[None] = gpu_codegen(recorder)
    else:
        target = nullcontext()
    torch._dynamo.reset()
    counters.clear()
    try:
        with (
            target,
            replaced(
                [
                    (compilation, "compile_forward", _outside_modes),
                    (codecache.PyCodeCache, "load_by_key_path", load),
                    (async_compile.AsyncCompile, "cpp_pybinding", kernel),
                    (inductor, "fx_graph_cache", False),
                    (inductor, "allow_buffer_reuse", False),
                    (inductor.cpp, "vec_isa_ok", True),  # else it builds a program to find out
                    (functorch, "enable_autograd_cache", False),
                    (dynamo, "automatic_dynamic_shapes", False),
                    (dynamo, "recompile_limit", SIZES * dynamo.recompile_limit),
                ]
            ),
        ):
            yield
        if breaks := list(counters["graph_break"]):
            raise GraphBreak(breaks[0].partition("\n")[0])
    except TorchDynamoException as error:
        raise GraphBreak(_reason(error)) from error
    finally:
        torch._dynamo.reset()


def _reason(error: Exception) -> str:
    """Return the first line of what the compiler says, or of what stopped it inside."""
    inner = getattr(error, "inner_exception", None) or error
    return str(inner).partition("\n")[0].strip() or type(inner).__name__


def _outside_modes(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a forward for calls under modes and hooks, of which the compiler is to see none."""
    real = torch.compile(forward, backend=compilation.BACKEND)

    def outside(*args: Any, **kwargs: Any) -> Any:
        none: list[tuple[Any, str, Any]] = [
            (hooks, "_global_forward_pre_hooks", OrderedDict()),
            (hooks, "_global_forward_hooks", OrderedDict()),
        ]
        with replaced(none), _disable_current_modes():
            return real(*args, **kwargs)

    return outside


def _program(recorder: StorageRecorder, key: str, path: str, attrs: dict[str, Any]) -> ModuleType:
    """Load a generated program, and let its buffers be the recorder's."""
    module = ModuleType(f"autotune_traced_{key}")
    module.__file__ = path
    exec(compile(Path(path).read_text(), path, "exec"), module.__dict__)
    call = module.call

    def recorded(args: Any) -> Any:
        with recorder:
            return call(args)

    for name, value in {
        **attrs, "call": recorded, "empty_strided_cpu": _empty, "reinterpret_tensor": _reinterpreted,
    }.items():  # fmt: skip
        setattr(module, name, value)
    return module


def _empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _reinterpreted(tensor: Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
