"""What `autotune doctor` finds: whether this machine can tune, on what, and what is missing."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from autotune.candidate import AXES, OPEN, examples
from autotune.devices.allocator import lacks_allocator
from autotune.devices.cpu import CpuDevice
from autotune.devices.find import find, resolve_device
from autotune.devices.hardware import table
from autotune.devices.host import available_memory, total_memory
from autotune.environment import how_to_install, installed, lowest, processor
from autotune.errors import AutotuneError
from autotune.memory.host_footprint import SHARED_MEMORY
from autotune.specs import DeviceFacts, DeviceSpec
from autotune.techniques.axis import Context
from autotune.techniques.check import this_machine, unsupported
from autotune.units import GIB, format_bytes
from autotune.validation import Frozen


class Finding(Frozen):
    """One thing that was looked at."""

    subject: str
    state: Literal["ok", "warning", "missing"]
    text: str
    """What was found, and what to do where that is not enough."""


def diagnose() -> list[Finding]:
    """Look at Python, libraries, GPU, processor, memory and disk. Imports no torch, launches nothing."""
    return [*_software(), *_gpu(), _simulated(), *_cpu(), *_techniques(), _loading(), _disk(Path.cwd())]


def _software() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(subject="Python", state="ok", text=version)
    for package, purpose in (
        ("torch", "training"),
        ("transformers", "models by name or config.json"),
        ("nvidia-ml-py", "GPUs"),
        ("accelerate", "only needed to train from `autotune export --to accelerate`"),
        ("matplotlib", "only needed for `autotune estimate --plot FILE.png`"),
        ("plotly", "only needed for `autotune estimate --plot FILE.html`"),
    ):
        found, least = installed(package), lowest(package)
        if found is None:
            text = f"not installed ({purpose}): {how_to_install(package)}"
            state: Literal["warning", "missing"] = "warning" if purpose.startswith("only") else "missing"
            yield Finding(subject=package, state=state, text=text)
        elif least is not None and _numbers(found) < _numbers(least):
            yield Finding(subject=package, state="warning", text=f"{found}; {least} or newer is needed")
        else:
            yield Finding(subject=package, state="ok", text=found)


def _gpu() -> Iterator[Finding]:
    try:
        device = resolve_device(DeviceSpec(kind="auto"))  # the words of a run
        if device.kind == "sim":
            yield Finding(subject="GPU", state="warning", text=device.because)
            return
        facts = find(device).facts()
    except AutotuneError as error:
        yield Finding(subject="GPU", state="missing", text=str(error))
        return
    peak = facts.peak_flops.get("bf16")
    speed = f", {peak / 1e12:.0f} TFLOP/s in bf16" if peak else ", no peak FLOP/s known: no MFU"
    text = f"{facts.name}, {format_bytes(facts.budget)} free of {format_bytes(facts.total)}, driver {facts.driver}"
    yield Finding(subject="GPU", state="ok", text=text + speed)
    if not facts.supports("bf16"):
        yield Finding(
            subject="bf16 on the GPU", state="warning", text="not supported: candidates fall back to fp16"
        )


def _simulated() -> Finding:
    names = ", ".join(row.aliases[0] if row.aliases else row.id for row in table().hardware)
    return Finding(subject="simulated GPUs", state="ok", text=f"--device sim:NAME with {names}")


def _cpu() -> Iterator[Finding]:
    yield Finding(subject="processor", state="ok", text=processor())
    flags = _cpu_flags()
    native = sorted(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    if native:
        yield Finding(subject="bf16 on the processor", state="ok", text=f"native ({', '.join(native)})")
    else:
        text = "emulated: it works, and is slower than fp32"
        yield Finding(subject="bf16 on the processor", state="warning", text=text)
    free, total = available_memory(), total_memory()
    yield Finding(subject="memory", state="ok", text=f"{format_bytes(free)} free of {format_bytes(total)}")
    if sys.platform != "linux":
        yield Finding(
            subject="cpu device", state="missing", text="needs Linux: the kernel must enforce the budget"
        )
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = CpuDevice(min(total, 64 * GIB)).minimum()
    if hard not in (resource.RLIM_INFINITY, -1) and hard < least:
        text = f"`ulimit -d` allows only {format_bytes(hard)}; {format_bytes(least)} are needed"
        yield Finding(subject="cpu device", state="missing", text=text)
    else:
        yield Finding(subject="cpu device", state="ok", text=f"budgets from {format_bytes(least)} up")
    if why := lacks_allocator():
        text = f"freed memory is mapped anew, so training is slower than it could be: {why}"
        yield Finding(subject="cpu device's allocator", state="warning", text=text)
    else:
        yield Finding(
            subject="cpu device's allocator", state="ok", text="keeps freed memory for the next step"
        )


def _techniques() -> Iterator[Finding]:
    """Say of every value of every axis whether this machine can run it, and what it lacks where it cannot."""
    try:
        facts = find(resolve_device(DeviceSpec(kind="cuda"))).facts()
    except AutotuneError:
        # No budget is taken: these facts only say what a processor computes.
        facts = DeviceFacts(
            kind="cpu", name=processor(), torch_name="cpu", budget=1, total=1, dtypes=("bf16",)
        )
    context = Context(device=facts, machine=this_machine())
    for axis in AXES:
        reasons = {_shown(axis, value): unsupported(axis, value, context) for value in examples(axis)}
        can = ", ".join(value for value, reason in reasons.items() if reason is None)
        cannot = [f"not {value}: {reason}" for value, reason in reasons.items() if reason is not None]
        yield Finding(subject=axis, state="warning" if cannot else "ok", text=". ".join([can, *cannot]))


def _shown(axis: str, value: object) -> str:
    if axis in OPEN and type(value) is int:
        return "a number"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _loading() -> Finding:
    """Say what a dataset's loader has: processors, and shared memory for batches in advance."""
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} cores for workers"
    if not SHARED_MEMORY.exists():
        return Finding(
            subject="data loading",
            state="warning",
            text=f"{text}, but no {SHARED_MEMORY}: only num_workers: 0",
        )
    free = shutil.disk_usage(SHARED_MEMORY).free
    text += f", {format_bytes(free)} of shared memory for their batches ({SHARED_MEMORY})"
    small = "" if free >= GIB else "; a container gets more with docker run --shm-size"
    return Finding(subject="data loading", state="warning" if small else "ok", text=text + small)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    enough = free >= 10 * GIB
    text = f"{format_bytes(free)} free here; runs, checkpoints of proofs and offload to disk go there"
    return Finding(subject="disk", state="ok" if enough else "warning", text=text)


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.startswith(("flags", "Features"))
        for flag in line.split(":", 1)[1].split()
    }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
