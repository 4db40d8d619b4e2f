"""The stage on which a training is traced: fake tensors, on a device, with files and ranks, that do not exist."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler

from autotune.candidate import Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.step_events import StepEvents
from autotune.worker.build import assembly
from autotune.worker.replacing import replaced
from autotune.worker.techniques import mapped_files, offload_store
from autotune.worker.techniques.adapters import library
from autotune.worker.techniques.float8 import converter
from autotune.worker.techniques.kernels import patcher
from autotune.worker.techniques.mapped_files import MappedFiles
from autotune.worker.techniques.optimizer import optimizer_maker
from autotune.worker.tracing import kernel_workspace
from autotune.worker.tracing.fakes.cuda import fake_cuda
from autotune.worker.tracing.fakes.flash import fake_flash
from autotune.worker.tracing.fakes.triton import fake_triton
from autotune.worker.tracing.shortening import Shortening
from autotune.worker.tracing.step_tracer import COMPILED, StepTracer
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.training import Training


class FakeTraining(NamedTuple):
    """A training on fake tensors, under the recorder that sees what it allocates."""

    recorder: StorageRecorder
    training: Training
    building: StepEvents
    """What building it allocated and released, and what passes before those that are traced left for good."""
    short: Shortening | None
    """The few blocks that its passes run through; None where they run through all."""
    why_all: str
    """Why they run through all, where that was asked for."""

    def blocks_run(self) -> str:
        """Return how many blocks the passes run through, and why all if they do."""
        return self.short.described() if self.short else f"all: {self.why_all or 'too few are alike'}"


@contextmanager
def fake_training(
    request: ProbeRequest, micro_steps: int = 1, why_all: str = "", alone: bool = False
) -> Iterator[FakeTraining]:
    """Build a training of its own, ready for its passes; `micro_steps` are those of an engine's optimizer step.

    With `why_all` the passes run through all blocks. `alone` is that of `stage`.
    """
    with stage(request, alone) as (recorder, there):
        with recorder.segment() as building:
            recorder.mark("build")
            training = assembly.assemble(there)
            recorder.label(training.model.parameters(), "parameter")
            recorder.label(training.model.buffers(), "buffer")
        with recorder.watching(training.model):
            if request.candidate.engine == "deepspeed":
                StepTracer(recorder, training, micro_steps).settle_whole(building)
            short = None if why_all else Shortening.of(training, request)
            fake = FakeTraining(recorder, training, building, short, why_all)
            prepare_ranks(request, fake)
            yield fake
        training.close()


@contextmanager
def stage(request: ProbeRequest, alone: bool = False) -> Iterator[tuple[StorageRecorder, ProbeRequest]]:
    """Return a recorder, among stand-ins for what the request's candidate needs and is not here; and the request there.

    A process that does nothing but trace is `alone`: what it has imported is frozen, and what a trace leaves need not
    be looked at again.
    """
    on_cuda = request.device.startswith("cuda")
    _import_libraries(request.candidate)
    # Nothing that a trace makes survives it, and the collector's passes over torch's own objects cost a fifth of it.
    # Who traces often freezes what was imported beforehand, and this leaves it so (to count it takes 80 ms).
    frozen = 1 if alone else gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    # What is in a cycle would be released whenever the collector runs; here that is at the end of each micro-step.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with (
            _as_if_real(),
            fake_cuda() if on_cuda else nullcontext(torch.device("cpu")) as device,
            _compiling(
                request, recorder := StorageRecorder(device.type, kernel_workspace.of_device(on_cuda))
            ),
            recorder,
            _with_packages(request, recorder, on_cuda),
            _in_files(recorder),
            _among_ranks(request, recorder, device),
        ):
            yield recorder, request.model_copy(update={"device": str(device)})
    finally:
        if not frozen:
            gc.unfreeze()
        if collecting:
            gc.enable()


def prepare_ranks(request: ProbeRequest, fake: FakeTraining) -> bool:
    """Take the first pass of sharded training, which prepares; False for others, or a library's engine.

    It runs through all blocks that later passes run through: of few, through those of the longer choice.
    """
    if request.candidate.engine == "deepspeed" or not _sharded(request):
        return False
    # Blocks are compiled for each size; a user's own batches are made once for each.
    compiled = request.candidate.compile != "none" and request.model.source != "function"
    first = StepTracer(fake.recorder, fake.training, short=fake.short)
    first.settle(fake.building, COMPILED.least if compiled else None, longer=True)
    return True


def _import_libraries(candidate: Candidate) -> None:
    """Import what the candidate needs, which must not happen on fake tensors. Raises CannotRun without it."""
    optimizer_maker(candidate.optimizer, 1)
    if candidate.adapters != "none":
        library()
    if candidate.precision == "fp8":
        converter()
    if candidate.kernels == "liger":
        patcher()


def _as_if_real() -> AbstractContextManager[None]:
    """Take the paths of real tensors, and initialize none.

    transformers knows fake tensors, and assumes packed sequences of them. Initialization takes time, and some
    functions of it look at what they drew. FSDP's notes for a profiler are operators too, which nobody reads here.
    """
    from torch.autograd.profiler import record_function
    from transformers import PreTrainedModel
    from transformers.utils import import_utils

    changes: list[tuple[Any, str, Any]] = [
        (import_utils, "is_fake_tensor", lambda _: False),
        (PreTrainedModel, "initialize_weights", lambda _: None),  # init_weights still ties what is tied
        # As if nothing overflowed.
        (GradScaler, "_maybe_opt_step", lambda _scaler, optimizer, *_: optimizer.step()),
        (record_function, "__enter__", lambda note: note),
        (record_function, "__exit__", lambda *_: None),
    ]
    for name, function in vars(torch.nn.init).items():
        if callable(function) and name.endswith("_") and not name.startswith("__"):
            changes.append((torch.nn.init, name, lambda tensor, *_, **__: tensor))
    return replaced(changes)


@contextmanager
def _with_packages(request: ProbeRequest, recorder: StorageRecorder, on_cuda: bool) -> Iterator[None]:
    """Provide what the candidate needs and a machine without a GPU cannot have."""
    with ExitStack() as provided:
        if on_cuda and request.candidate.attention == "flash_attention_2":
            provided.enter_context(fake_flash())
        if on_cuda and request.candidate.kernels == "liger":
            provided.enter_context(fake_triton(recorder))
        yield


def _compiling(request: ProbeRequest, recorder: StorageRecorder) -> AbstractContextManager[None]:
    if request.candidate.compile == "none":
        return nullcontext()
    from autotune.worker.tracing.fakes.compiler import fake_compiler  # late: it imports the compiler

    candidate = request.candidate
    setting = (
        request.model.model_dump_json(),
        candidate.precision,
        candidate.tf32,
        candidate.activation_memory_budget,
    )
    return fake_compiler(recorder, request.device.startswith("cuda"), setting)


def _in_files(recorder: StorageRecorder) -> AbstractContextManager[None]:
    """Let offload to mapped files make tensors that are not counted, and no files."""

    class Files(MappedFiles):
        def zeros_like(self, tensor: Tensor) -> Tensor:
            with recorder.on_disk():
                return torch.empty_like(tensor, device="cpu", requires_grad=False)

    return replaced([(offload_store, "MappedFiles", Files), (mapped_files, "is_mapped", recorder.is_on_disk)])


def _sharded(request: ProbeRequest) -> bool:
    """Tell whether a process group takes part: over several ranks, or in full offload from a GPU."""
    on_cuda = request.device.startswith("cuda")
    return request.candidate.distributed or (on_cuda and request.candidate.offload == "full")


def _among_ranks(
    request: ProbeRequest, recorder: StorageRecorder, device: torch.device
) -> AbstractContextManager[None]:
    if not _sharded(request):
        return nullcontext()
    from autotune.worker.tracing.fakes.ranks import fake_ranks  # late: half a second that other traces save

    return fake_ranks(recorder, device, request.candidate)
