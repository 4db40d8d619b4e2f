"""torch's compiler for traces: it divides, fuses and plans buffers as ever, and makes no kernel.

What a compiled block allocates is written in the program that inductor generates: a function that makes buffers,
calls kernels and releases buffers. Here the compiler makes that program of fake tensors, with the same graphs, the same
choice of what is kept for backward and the same fusions; and the program runs on the recorder's fake tensors, where a
kernel writes nothing. So buffers come and go as they do in a probe.

For a GPU `fakes.gpu_codegen` makes the stand-in known to inductor. Not covered: what the compiler itself takes of the
host.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _disable_current_modes

from autotune.timeline.depth import NotAlike
from autotune.worker.replacing import replaced
from autotune.worker.techniques import compilation
from autotune.worker.tracing.fused_work import FusedWork
from autotune.worker.tracing.step_tracer import Unlike
from autotune.worker.tracing.storage_recorder import StorageRecorder

SIZES = 4
"""Micro-batches that one trace runs at most, each of which is compiled for itself, as it is in a probe."""
WAYS = 16
"""Ways in which blocks of one class run in the traces of a process: by attention, sharded, adapted."""


class GraphBreak(Exception):
    """The compiler does not take a block, or not as one graph; says why, in torch's words."""


class Recording:
    """The recorder that programs run for. They outlive a trace where the next one compiles the same."""

    def __init__(self) -> None:
        self._recorder: StorageRecorder | None = None
        self.kept = False
        """Whether what is compiled serves later traces too."""
        self.setting: Hashable = None
        """What was compiled by last."""
        self.awaited = FusedWork()
        """Of the graphs of which no program was made yet."""

    @property
    def recorder(self) -> StorageRecorder:
        """The recorder of the trace under way."""
        assert self._recorder is not None, "programs run within a trace"
        return self._recorder

    @contextmanager
    def of(self, recorder: StorageRecorder) -> Iterator[None]:
        """Let programs run for a recorder while open."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None


_RECORDING = Recording()
_compile_forward = compilation.compile_forward


@contextmanager
def kept_programs() -> Iterator[None]:
    """Let traces within share what they compile: a block that is compiled like another is compiled once.

    torch itself tells, by its guards, whether what was compiled before is the same; of settings that these do not look
    at, `fake_compiler` is told.
    """
    _RECORDING.kept = True
    try:
        yield
    finally:
        _RECORDING.kept = False
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()


class Kernel:
    """What stands for a fused kernel: it moves the bytes of its arguments; its program knows what all compute."""

    def __call__(self, *args: Any) -> None:
        """Record the bytes of the arguments as moved by one fused kernel."""
        _RECORDING.recorder.log.fused([value for value in args if isinstance(value, Tensor)])


@contextmanager
def fake_compiler(
    recorder: StorageRecorder, on_gpu: bool = False, setting: Hashable = None
) -> Iterator[None]:
    """Let blocks that are compiled within be compiled for the recorder. Enter it before the recorder.

    Programs are shared only with traces of an equal `setting`.

    Every shape is compiled for itself, as in a probe, which sees one. Nothing is kept beyond `kept_programs`: what is
    compiled here would be found by a real training in the same process. A buffer is released where it was used last
    instead of serving again, which depends on sizes that happen to agree; inductor lets none serve again that would
    make the peak higher. Raises GraphBreak at the end if a block was divided, or was not compiled, with torch's own
    reason.
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
        return _program(key, path, attrs or {})

    def kernel(*_: Any, **__: Any) -> Kernel:
        return Kernel()

    if on_gpu:
        from autotune.worker.tracing.fakes.gpu_codegen import gpu_codegen

        target: AbstractContextManager[None] = gpu_codegen(lambda: _RECORDING.recorder)
    else:
        target = nullcontext()
    if not _RECORDING.kept or setting != _RECORDING.setting:
        torch._dynamo.reset()
    _RECORDING.setting = setting
    counters.clear()
    divided = True
    try:
        with (
            _RECORDING.of(recorder),
            target,
            replaced(
                [
                    (compilation, "compile_forward", _outside_modes),
                    (codecache.PyCodeCache, "load_by_key_path", load),
                    (async_compile.AsyncCompile, "cpp_pybinding", kernel),
                    (inductor, "fx_graph_cache", False),
                    # a GPU computes while it moves bytes
                    *([] if on_gpu else [(inductor, "post_grad_custom_post_pass", _note_work)]),
                    (inductor, "allow_buffer_reuse", False),
                    (inductor.cpp, "vec_isa_ok", True),  # else it builds a program to find out
                    (functorch, "enable_autograd_cache", False),
                    (dynamo, "automatic_dynamic_shapes", False),
                    (dynamo, "recompile_limit", SIZES * WAYS * dynamo.recompile_limit),
                    (
                        dynamo,
                        "accumulated_recompile_limit",
                        SIZES * WAYS * dynamo.accumulated_recompile_limit,
                    ),
                ]
            ),
        ):
            yield
        check_undivided()
        divided = False
    except TorchDynamoException as error:
        raise GraphBreak(_reason(error)) from error
    except (NotAlike, Unlike):  # say nothing of what was compiled
        divided = bool(counters["graph_break"])
        raise
    finally:
        if divided or not _RECORDING.kept:  # a block that was divided is not told of again
            torch._dynamo.reset()


def check_undivided() -> None:
    """Raise GraphBreak if a block was divided, or was not compiled, with torch's own reason."""
    from torch._dynamo.utils import counters

    if breaks := list(counters["graph_break"]):
        raise GraphBreak(breaks[0].partition("\n")[0])


def _reason(error: Exception) -> str:
    """Return the first line of what the compiler says, or of what stopped it inside."""
    inner = getattr(error, "inner_exception", None) or error
    return str(inner).partition("\n")[0].strip() or type(inner).__name__


def _outside_modes(forward: Callable[..., Any], _noting: bool) -> Callable[..., Any]:
    """Compile a forward for calls under modes and hooks, of which the compiler is to see none.

    Its programs note copies of weights, asked or not: so one serves with activation offload and without.
    """
    real = _compile_forward(forward, True)

    def outside(*args: Any, **kwargs: Any) -> Any:
        none: list[tuple[Any, str, Any]] = [
            (hooks, "_global_forward_pre_hooks", OrderedDict()),
            (hooks, "_global_forward_hooks", OrderedDict()),
        ]
        caching = torch.is_autocast_cache_enabled()
        # Some sharded trainings go without the cache of casts. The compiler's guards look at it; its graphs have none.
        torch.set_autocast_cache_enabled(False)
        try:
            with replaced(none), _disable_current_modes():
                return real(*args, **kwargs)
        finally:
            torch.set_autocast_cache_enabled(caching)

    return outside


def _note_work(graph: torch.fx.Graph) -> None:
    """Count the work of a graph that is about to become a program.

    A function, as torch copies its settings with all that they refer to.
    """
    _RECORDING.awaited += FusedWork.of(graph)


def _program(key: str, path: str, attrs: dict[str, Any]) -> ModuleType:
    """Load a generated program, and let its buffers be the recorder's."""
    work, _RECORDING.awaited = _RECORDING.awaited, FusedWork()
    module = ModuleType(f"autotune_traced_{key}")
    module.__file__ = path
    exec(compile(Path(path).read_text(), path, "exec"), module.__dict__)
    call = module.call

    def recorded(args: Any) -> Any:
        recorder = _RECORDING.recorder
        recorder.log.fused_work(work)
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
