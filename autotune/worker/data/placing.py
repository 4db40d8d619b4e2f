"""From where a batch is made to the training device, without the host waiting for what the device is still doing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from autotune.worker.training import Batch


def placing_on(device: torch.device, pinned: bool = True) -> Callable[[Batch], Batch]:
    """Return what brings a batch to a device.

    A copy of pageable memory drains the GPU's queue and keeps the host waiting meanwhile. So batches are pinned and
    copied without waiting; torch's allocator of pinned memory reuses none that a copy still reads. Without `pinned`
    they go as they are, which is how a DataLoader's go that does not pin; what was pinned by others does not wait
    either. A trace's batches have no data, and nothing to copy.
    """
    if device.type == "cpu":
        return lambda batch: batch

    def placed(value: Tensor) -> Tensor:
        if isinstance(value, FakeTensor) or value.device.type == device.type:  # a user's own may be there
            return value.to(device)
        if pinned and not value.is_pinned():
            value = value.pin_memory()
        return value.to(device, non_blocking=value.is_pinned())

    return lambda batch: {name: placed(value) for name, value in batch.items()}
