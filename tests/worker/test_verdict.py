"""From exceptions to verdicts: torch is not needed to tell them apart, its texts are."""

import errno
import shutil
from collections import namedtuple

import pytest
import torch
from torch import nn

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.outcome import Crash, Oom, Unsupported
from autotune.worker.blocks import find_blocks
from autotune.worker.errors import CannotRun, DiskRefused, OutOfSpace, lacking
from autotune.worker.measuring.verdict import Circumstances, disk_full, verdict
from autotune.worker.techniques.checkpointing import checkpoint_blocks
from autotune.worker.techniques.offload_store import _pinning

CPU_REFUSAL = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 33554432 bytes. Error code 12 (Cannot allocate memory)"
)


def at(device="cpu", short=False, **changes):
    values = {"phase": "forward", "step": 2, "device": device, "free": 1000, "short": short, **changes}
    return Circumstances(**values)


@pytest.mark.parametrize(
    ("device", "error", "where"),
    [
        ("cpu", MemoryError(), "device"),
        ("cuda", MemoryError(), "host"),
        ("cpu", RuntimeError(CPU_REFUSAL), "device"),
        ("cuda", RuntimeError(CPU_REFUSAL), "host"),
        ("cpu", RuntimeError("std::bad_alloc"), "device"),
        ("cpu", OSError(errno.ENOMEM, "Cannot allocate memory"), "device"),
        ("cuda", OSError(errno.ENOMEM, "Cannot allocate memory"), "host"),
        ("cuda", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "device"),
        ("cuda", RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), "device"),
        ("cuda", torch.AcceleratorError("CUDA error: out of memory"), "host"),
        ("cuda", RuntimeError("CUDA error: out of memory"), "host"),
        ("cuda", RuntimeError("CUDA driver error: out of memory"), "device"),
        (
            "cuda",
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            "device",
        ),
        ("cuda", RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "device"),
        ("cuda", RuntimeError("Triton Error [CUDA]: out of memory"), "device"),
        ("cuda", RuntimeError("NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'"), "device"),
    ],
)
def test_refused_memory_is_told_with_where_it_was_refused(device, error, where):
    outcome = verdict(error, at(device))
    assert isinstance(outcome, Oom)
    assert (outcome.where, outcome.phase) == (where, "forward")


WRITER = "[enforce fail at inline_container.cc:668] . PytorchStreamWriter failed writing file data/3: file write failed"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/models/x.pt"), "No space left on device"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded"),
        (
            RuntimeError("unable to resize file </x> to the right size: File too large (27)"),
            "unable to resize",
        ),
        (DiskRefused("/scratch", 100, 7, "No space left on device"), "No space left on device"),
    ],
)
def test_a_full_disk_is_no_verdict(error, message, tmp_path):
    """Also below what a library raised because of it."""
    try:
        try:
            raise error
        except (OSError, RuntimeError, DiskRefused):
            raise ValueError("a library's own words")  # noqa: B904
    except ValueError as wrapped:
        answer = disk_full(wrapped, "save", str(tmp_path))
    assert message in answer.message
    assert answer.phase == "save"
    named = getattr(error, "filename", None) or getattr(error, "path", None) or str(tmp_path)
    assert answer.where == named
    assert answer.free is not None


def test_torch_s_own_writer_gives_no_reason_so_the_disk_is_asked(tmp_path, monkeypatch):
    assert disk_full(RuntimeError(WRITER), "save", str(tmp_path)) is None
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 4096, 4096))
    assert disk_full(RuntimeError(WRITER), "save", str(tmp_path)).free == 4096
    assert disk_full(RuntimeError("shapes cannot be multiplied"), "forward", str(tmp_path)) is None


def test_memory_and_bugs_are_no_full_disk(tmp_path):
    for error in (
        MemoryError(),
        RuntimeError(CPU_REFUSAL),
        OSError(errno.ENOMEM, "no"),
        ValueError("disk full"),
    ):
        assert disk_full(error, "forward", str(tmp_path)) is None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("could not create a primitive"),
        RuntimeError("can't start new thread"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        SystemError("error return without exception set"),
    ],
)
def test_an_error_that_may_mean_memory_does_so_only_where_memory_is_short(error):
    assert isinstance(verdict(error, at("cuda", short=True)), Oom)
    assert isinstance(verdict(error, at("cuda", short=False)), Crash)


def test_the_request_is_read_from_the_message_and_free_is_less_than_it():
    outcome = verdict(RuntimeError(CPU_REFUSAL), at(free=2**40))
    assert outcome.requested == 33554432
    assert outcome.free == 33554432
    outcome = verdict(torch.OutOfMemoryError("CUDA out of memory."), at("cuda", requested=4000, free=10))
    assert (outcome.requested, outcome.free) == (4000, 10)


def test_host_memory_that_was_refused_says_nothing_of_the_device():
    outcome = verdict(MemoryError(), at("cuda", requested=4000, free=10))
    assert (outcome.requested, outcome.free) == (None, None)


def test_refusals_of_the_package_itself():
    refused = CannotRun("precision", "device", "no bf16")
    assert str(lacking("adapters", "LoRA", "peft")) == "LoRA needs peft: pip install 'autotune[peft]'"
    assert verdict(refused, at()) == Unsupported(reason="no bf16", axis="precision", cause="device")
    outcome = verdict(OutOfSpace("disk", 10, 5, "full"), at())
    assert outcome == Oom(where="disk", phase="forward", requested=10, free=5, message="full")


def fail_because_of_memory(suppress):
    try:
        raise MemoryError
    except MemoryError as error:
        raise ValueError("a library's own words") from (None if suppress else error)


def test_a_refusal_is_found_below_what_was_raised_because_of_it():
    with pytest.raises(ValueError) as caught:
        fail_because_of_memory(suppress=False)
    assert isinstance(verdict(caught.value, at()), Oom)
    with pytest.raises(ValueError) as caught:
        fail_because_of_memory(suppress=True)
    assert isinstance(verdict(caught.value, at()), Crash)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        OSError(errno.ENOENT, "No such file"),
        ImportError("No module named 'mine'"),
        KeyError("x"),
    ],
)
def test_a_bug_stays_a_bug_even_where_memory_is_short(error):
    outcome = verdict(error, at("cuda", short=True))
    assert isinstance(outcome, Crash)
    assert outcome.reason == "exception"
    assert type(error).__name__ in outcome.message
    assert type(error).__name__ in outcome.traceback


def test_bad_input_is_told_in_its_own_words_alone():
    outcome = verdict(InputError("the model has 16 positions"), at())
    assert outcome == Unsupported(reason="the model has 16 positions")


PINNED = torch.AcceleratorError("CUDA error: out of memory")
IN_PIN_THREAD = torch.AcceleratorError(
    "Caught AcceleratorError in pin memory thread for device 0.\nCUDA error: out of memory"
)


@pytest.mark.parametrize(
    ("error", "free", "short", "where"),
    [
        (PINNED, 60 << 30, False, "host"),
        (PINNED, 1 << 20, True, "device"),
        (PINNED, None, False, "device"),  # before there is a context, it is the context that was refused
        (IN_PIN_THREAD, 1 << 20, True, "host"),
    ],
)
def test_the_runtime_s_oom_is_the_host_s_where_the_device_has_room(error, free, short, where):
    survived = {"requested": 7 << 30, "free_at_refusal": 5}
    outcome = verdict(error, at("cuda", free=free, short=short, **survived))
    assert isinstance(outcome, Oom)
    assert (outcome.where, outcome.requested) == (where, None)
    assert outcome.free == (free if where == "device" else None)


def test_what_the_allocator_refused_is_told_of_its_own_error_alone():
    refused = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    outcome = verdict(refused, at("cuda", free=9000, requested=2 << 30, free_at_refusal=5))
    assert isinstance(outcome, Oom)
    assert (outcome.where, outcome.requested, outcome.free) == ("device", 2 << 30, 5)


@pytest.mark.parametrize(
    "message",
    ["CUDA error: an illegal memory access was encountered", "CUDA error: device-side assert triggered"],
)
def test_pinning_that_meets_another_error_passes_it_on(message):
    error = torch.AcceleratorError(message)
    with pytest.raises(torch.AcceleratorError) as passed, _pinning(1024):
        raise error
    assert passed.value is error
    with pytest.raises(OutOfSpace), _pinning(1024):
        raise PINNED
    with pytest.raises(OutOfSpace), _pinning(1024):
        raise RuntimeError(CPU_REFUSAL)


class AddsInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = nn.Linear(4, 4, bias=False)

    def forward(self, hidden):
        result = self.product(hidden)
        result += hidden
        return result.relu()


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4)])
@pytest.mark.parametrize("how", ["selective", "alternate"])
def test_a_product_that_is_changed_in_place_does_not_go_with_keeping_it(how, shape):
    """Of more than two dimensions torch does not notice by itself, and gradients are wrong."""
    model = nn.Sequential(*(AddsInPlace() for _ in range(2)))
    checkpoint_blocks(find_blocks(model, "AddsInPlace"), Candidate(checkpointing=how))
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(shape, requires_grad=True)).sum().backward()
    outcome = verdict(caught.value, at())
    assert isinstance(outcome, Unsupported)
    assert (outcome.axis, outcome.cause) == ("checkpointing", "context")
