"""Offload of parameters, gradients and optimizer state from a GPU: FSDP2 with CPU offload, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from autotune.candidate import Precision
from autotune.train.blocks import Blocks
from autotune.train.optimizers import MakeOptimizer, state_tensors
from autotune.train.refusal import CannotRun


def shard_to_host(
    model: nn.Module, blocks: Blocks | None, precision: Precision, device: torch.device
) -> Callable[[], None]:
    """Keep parameters and gradients of `model` (built on the CPU) on the host; `device` is the current one.

    Each block's parameters visit the device for its forward and its backward; those outside the blocks
    (embeddings, head) stay from forward to backward. With bf16 the blocks' parameters and inputs are cast to
    bf16, so that all types within a block agree, and gradients come back in fp32; what is outside the blocks
    is left to autocast. The residual stream is then bf16 where plain autocast may keep it in fp32: losses
    agree to bf16's rounding, not bit for bit. Returns what ends the process group. Raises CannotRun where no
    block was found: the whole model would visit the device at once.
    """
    if blocks is None:
        raise CannotRun(
            "no repeated transformer block was found to offload one by one; name its class with --block-class"
        )
    pin = device.type == "cuda"
    # Norms of gradients on the host need a backend for the CPU too.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if pin else "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    mesh = init_device_mesh(device.type, (1,))
    offload = CPUOffloadPolicy(pin_memory=pin)
    in_blocks = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None,
        reduce_dtype=torch.float32,
    )
    for block in blocks.modules:
        fully_shard(block, mesh=mesh, mp_policy=in_blocks, offload_policy=offload)
    fully_shard(
        model, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False), offload_policy=offload
    )

    def close() -> None:
        dist.destroy_process_group()

    return close


class HostOptimizer:
    """One torch optimizer over the host's shards, which are the whole parameters on one rank."""

    def __init__(self, parameters: Iterable[nn.Parameter], make: MakeOptimizer) -> None:
        self._pairs = [(p, nn.Parameter(_local(p))) for p in parameters if p.requires_grad]
        self._optimizer = make([shard for _, shard in self._pairs])

    def step(self) -> None:
        for parameter, shard in self._pairs:
            shard.grad = None if parameter.grad is None else _local(parameter.grad)
        self._optimizer.step()

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for parameter, _ in self._pairs:
            parameter.grad = None

    def state_tensors(self) -> Iterator[Tensor]:
        return state_tensors([self._optimizer])


def _local(tensor: Tensor) -> Tensor:
    """Return the shard that shares its memory with a distributed tensor."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
