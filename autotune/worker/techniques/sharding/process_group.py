"""The processes that train together: one rank a device."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from autotune.worker.training import Ranks

RENDEZVOUS = "AUTOTUNE_RENDEZVOUS"
"""Variable that names the file by which the ranks of a probe find each other; no port can be taken by another."""


class Group(Ranks):
    """Ranks with a process group to talk through."""

    def largest(self, value: float) -> float:
        """Return the largest of all ranks' values, on every rank."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def mean(self, value: float) -> float:
        """Return the mean of all ranks' values, on every rank."""
        return self._reduced(value, dist.ReduceOp.SUM) / self.size

    def _reduced(self, value: float, operation: dist.ReduceOp.RedOpType) -> float:
        number = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(number, operation)
        return float(number)


def form_group(device: torch.device, size: int, tensor_parallel: int = 1) -> Ranks:
    """Form the process group of `size` ranks, of which `tensor_parallel` share a model each; this one is on `device`.

    Several ranks know their number by RANK, and find each other by the file that AUTOTUNE_RENDEZVOUS names, else by
    MASTER_ADDR and MASTER_PORT, as torch's launcher sets them. One rank forms a group alone.
    """
    # On CUDA tensors on the host (gradients of full offload, numbers to agree on) need a backend too.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if size == 1:
        # Gloo looks for an address of the machine's name, which a machine without a network does not have.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    elif file := os.environ.get(RENDEZVOUS):
        rank = int(os.environ["RANK"])
        dist.init_process_group(backend, store=dist.FileStore(file, size), rank=rank, world_size=size)
    else:
        dist.init_process_group(backend)
    found = dist.get_world_size()
    assert found == size, f"{found} ranks were launched, and the request is for {size}"
    return Group(dist.get_rank(), size, tensor_parallel)


def form_mesh(device: torch.device, ranks: Ranks) -> DeviceMesh:
    """Return the ranks as a mesh of `data` x `tensor`: those in a row of the second dimension share one model.

    Where one model is all there is, `tensor` alone: it is the group that exists, and each further one costs buffers.
    """
    if ranks.data_size == 1:
        return init_device_mesh(device.type, (ranks.tensor_parallel,), mesh_dim_names=("tensor",))
    return init_device_mesh(
        device.type, (ranks.data_size, ranks.tensor_parallel), mesh_dim_names=("data", "tensor")
    )


def end_group() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()
