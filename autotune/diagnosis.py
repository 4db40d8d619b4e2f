"""What `autotune doctor` finds: whether this machine can tune, on what, and what is missing."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from autotune.demand import SHARED_MEMORY
from autotune.devices.cpu import CpuDevice
from autotune.devices.find import find, resolve_device
from autotune.devices.host import available_memory, total_memory
from autotune.environment import installed, lacks_compiler, processor
from autotune.errors import AutotuneError
from autotune.hardware import table
from autotune.specs import DeviceSpec
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
    for package, needed, purpose in (
        ("torch", (2, 10), "training"),
        ("transformers", (5, 0), "models by name or config.json"),
        ("nvidia-ml-py", (12,), "GPUs"),
        ("accelerate", (1, 10), "only needed to train from `autotune export --to accelerate`"),
    ):
        found = installed(package)
        if found is None:
            state: Literal["warning", "missing"] = "warning" if package == "accelerate" else "missing"
            yield Finding(
                subject=package, state=state, text=f"not installed ({purpose}): pip install {package}"
            )
        elif _numbers(found) < needed:
            least = ".".join(map(str, needed))
            yield Finding(subject=package, state="warning", text=f"{found}; {least} or newer is needed")
        else:
            yield Finding(subject=package, state="ok", text=found)


def _gpu() -> Iterator[Finding]:
    try:
        facts = find(resolve_device(DeviceSpec(kind="cuda"))).facts()
    except AutotuneError as error:
        yield Finding(subject="GPU", state="warning", text=str(error))
        return
    peak = facts.peak_flops.get("bf16")
    speed = f", {peak / 1e12:.0f} TFLOP/s in bf16" if peak else ", no peak FLOP/s known: no MFU"
    text = f"{facts.name}, {format_bytes(facts.budget)} free of {format_bytes(facts.total)}, driver {facts.driver}"
    yield Finding(subject="GPU", state="ok", text=text + speed)
    if not facts.supports_bf16:
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


def _techniques() -> Iterator[Finding]:
    """Say which techniques this machine lacks something for, and what; all others run anywhere."""
    try:
        gpu = find(resolve_device(DeviceSpec(kind="cuda"))).facts()
    except AutotuneError:
        gpu = None
    always = "precision, checkpointing, chunked loss, activation offload, offload, and all optimizers but 8-bit AdamW"
    yield Finding(subject="techniques", state="ok", text=f"{always} need nothing more")
    yield Finding(
        subject="tensor_parallel", state="ok",
        text="needs two devices or more (--gpus), and a model that transformers ships a plan with",
    )  # fmt: skip
    bitsandbytes = installed("bitsandbytes")
    yield Finding(
        subject="adamw-8bit", state="ok" if bitsandbytes else "warning",
        text=f"bitsandbytes {bitsandbytes}" if bitsandbytes
        else "bitsandbytes is not installed: pip install 'autotune[bitsandbytes]'",
    )  # fmt: skip
    no_compiler = lacks_compiler("cpu" if gpu is None else "cuda")
    yield Finding(
        subject="compile", state="warning" if no_compiler else "ok", text=no_compiler or "it can run"
    )
    peft = installed("peft")
    yield Finding(
        subject="lora", state="ok" if peft else "warning",
        text=f"peft {peft}" if peft else "peft is not installed: pip install 'autotune[peft]'",
    )  # fmt: skip
    packages = [name for name, found in (("peft", peft), ("bitsandbytes", bitsandbytes)) if not found]
    yield Finding(
        subject="qlora", state="warning" if packages else "ok",
        text=f"{' and '.join(packages)} not installed: pip install 'autotune[{','.join(packages)}]'" if packages
        else "peft and bitsandbytes are there",
    )  # fmt: skip
    deepspeed = installed("deepspeed")
    yield Finding(
        subject="deepspeed", state="ok" if deepspeed else "warning",
        text=f"deepspeed {deepspeed}" if deepspeed
        else "deepspeed is not installed: DS_BUILD_OPS=0 pip install 'autotune[deepspeed]'",
    )  # fmt: skip
    for attention, package in (("flash_attention_2", "flash-attn"), ("flex_attention", None)):
        lacking = []
        if gpu is None:
            lacking.append("it trains on a GPU only")
        if package is not None and installed(package) is None:
            lacking.append(f"{package} is not installed: pip install {package}")
        yield Finding(
            subject=attention, state="warning" if lacking else "ok", text="; ".join(lacking) or "it can run",
        )  # fmt: skip


def _loading() -> Finding:
    """Say what a dataset's loader has: processors, and shared memory for batches in advance."""
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} cores for workers"
    if not SHARED_MEMORY.exists():
        return Finding(
            subject="data loading", state="warning", text=f"{text}, but no {SHARED_MEMORY}: only workers=0"
        )
    free = shutil.disk_usage(SHARED_MEMORY).free
    text += f", {format_bytes(free)} of shared memory for their batches ({SHARED_MEMORY})"
    small = "" if free >= GIB else "; a container gets more with docker run --shm-size"
    return Finding(subject="data loading", state="warning" if small else "ok", text=text + small)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    enough = free >= 10 * GIB
    text = (
        f"{format_bytes(free)} free here; runs, checkpoints of proofs and offload on the cpu device go there"
    )
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
