"""The processes that train together: one rank a device."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autotune.train.training import Ranks


def form_group(device: torch.device, size: int) -> Ranks:
    """Form the process group of `size` ranks; this one trains on `device`.

    Several ranks find each other by the environment that torch's launcher sets: RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT. One rank forms a group alone.
    """
    # On CUDA tensors on the host (gradients of full offload, flags) need a backend too.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend)
    found = dist.get_world_size()
    assert found == size, f"{found} ranks were launched, and the request is for {size}"
    return Ranks(dist.get_rank(), size)


def end_group() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
