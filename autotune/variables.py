"""The environment variables that autotune sets for training, by name: no file can ask for another one.

They are recorded in `best.yaml` and exported by `launch.sh`, so a file of a stranger's could otherwise have a shell
load a library (LD_PRELOAD) or run another program (PATH, PYTHONPATH).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from autotune.errors import nearest

VARIABLES = frozenset({
    "AUTOTUNE_ALLOCATOR",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "DS_ACCELERATOR",
    "GLIBC_TUNABLES",
    "GLOO_SOCKET_IFNAME",
    "LRU_CACHE_CAPACITY",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MIMALLOC_ARENA_EAGER_COMMIT",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_FR_BUFFER_SIZE",
})  # fmt: skip
"""What devices and executors set; a test compares."""


def _known(name: str) -> str:
    if name not in VARIABLES:
        raise ValueError(
            f"autotune sets no variable of this name, and exports none; {nearest(name, VARIABLES)}"
        )
    return name


def _plain(value: str) -> str:
    if not value.isprintable():
        raise ValueError("a variable's value is one line without control characters")
    return value


Variable = Annotated[str, AfterValidator(_known)]
"""Name of a variable that autotune sets."""
VariableValue = Annotated[str, Field(max_length=4096), AfterValidator(_plain)]
"""What such a variable holds."""
