"""What a device reaches, timed in a second: matrix products, attention, an activation function, memory, a launch.

Of a processor random numbers are timed, too, and the files that it offloads to.

For devices of which no data sheet is known, the cpu above all. Only ratios matter much: what all operators have in
common, probes correct (`timing.speed_model`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from autotune.devices.host import unwritten_files
from autotune.specs import DeviceSpeed, FileSpeed
from autotune.worker.errors import DiskRefused, OutOfSpace
from autotune.worker.measuring.process_memory import limit_lifted
from autotune.worker.techniques.mapped_files import MappedFiles

SECONDS = 0.08
"""How long each operator is repeated, at least."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def time_device(name: str, folder: str) -> DeviceSpeed | None:
    """Time a few operators on a device, torch's name of which is given; None where memory runs out.

    Tensors that leave the cpu device go to files in `folder`. At most 100 MiB are taken, whatever the cpu device's
    budget, and 512 of a GPU. Each figure is the best of its repetitions, so that a neighbour's work counts little.
    """
    device = torch.device(name)
    try:
        with torch.no_grad(), limit_lifted():
            return DeviceSpeed(
                matrix_flops={math: _matrix(dtype, device) for math, dtype in TYPES.items()},
                attention_flops={math: _attention(dtype, device) for math, dtype in TYPES.items()},
                elementwise_flops=_elementwise(device),
                memory=_memory(device),
                operator=_operator(device),
                random=_random(device) if device.type == "cpu" else None,
                threads=torch.get_num_threads(),
                files=_files(folder, device) if device.type == "cpu" else None,
            )
    except RuntimeError as error:  # torch's class for what malloc refuses; OutOfMemoryError is one
        if "memory" in str(error):
            return None
        raise


def _matrix(dtype: torch.dtype, device: torch.device) -> float:
    size = 4096 if device.type == "cuda" else 768
    if device.type == "cpu":  # where a processor emulates a type, its product takes a second
        third = _product(size // 3, dtype, device)
        third()  # a first call loads what it needs, and wakes threads
        seconds = _fastest(third, device)
        if 27 * seconds > SECONDS:
            return float(2 * (size // 3) ** 3) / seconds
    return float(2 * size**3) / _fastest(_product(size, dtype, device), device)


def _product(size: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """Return a product of two square matrices; not of ones, which a GPU multiplies a tenth faster, using less power."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return lambda: a @ b


def _attention(dtype: torch.dtype, device: torch.device) -> float:
    heads, length, width = (64, 2048, 128) if device.type == "cuda" else (12, 512, 64)
    q = torch.randn(1, heads, length, width, dtype=dtype, device=device)
    flops = 4 * heads * length**2 * width // 2  # causal: half of the scores
    return flops / _fastest(lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True), device)


def _elementwise(device: torch.device) -> float:
    elements = 2**23 if device.type == "cuda" else 2**18  # enough for all of a GPU; 1 MiB: in a cache
    a = torch.ones(elements, device=device)
    return elements / _fastest(lambda: functional.gelu(a, approximate="tanh"), device)


def _memory(device: torch.device) -> float:
    elements = 2**26 if device.type == "cuda" else 2**23  # more than a GPU's cache of 60 MB
    a, b = (torch.ones(elements, device=device) for _ in range(2))
    return 3 * 4 * elements / _fastest(lambda: a.add_(b), device)


def _operator(device: torch.device) -> float:
    a = torch.ones(1, device=device)
    return _fastest(lambda: a + a, device, inside=100)


def _random(device: torch.device) -> float:
    elements = 2**18
    a = torch.empty(elements, device=device)
    return elements / _fastest(lambda: a.bernoulli_(0.9), device)


def _files(folder: str, device: torch.device) -> FileSpeed | None:
    """Time copies into new files; None where there can be none: that is told where one is needed."""
    files, tensor = MappedFiles(folder), torch.ones(2**22)
    try:
        seconds = _fastest(lambda: files.copy_of(tensor), device)
        return FileSpeed(copy_speed=tensor.nbytes / seconds, unwritten=unwritten_files())
    except (OutOfSpace, DiskRefused, OSError, RuntimeError):  # the last is torch's, for what cannot be mapped
        return None


TOGETHER = 20
"""Calls that a GPU is given at a time: waiting for one takes as long as a short one runs."""


def _fastest(run: Callable[[], object], device: torch.device, inside: int = 1) -> float:
    """Return the seconds of one call: the least of as many groups of `inside` calls as fit in SECONDS.

    A first call is not counted, unless it takes that long: so does a product of a type that a processor emulates.
    """
    if device.type == "cuda":
        inside = max(inside, TOGETHER)
    began = time.perf_counter()
    run()
    if device.type == "cpu" and (first := time.perf_counter() - began) > SECONDS:
        return first
    best, end = float("inf"), time.perf_counter() + SECONDS
    while best == float("inf") or time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(inside):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, (time.perf_counter() - began) / inside)
    return best
