"""Parameters in shards: FSDP2 over several ranks, or with the shards on the host (full offload, also on one rank)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from autotune.candidate import Precision, ReduceType
from autotune.techniques.blocks import no_block
from autotune.worker.blocks import Blocks
from autotune.worker.errors import CannotRun
from autotune.worker.techniques.mapped_files import MappedFiles
from autotune.worker.training import StepOptimizer


def shard(
    model: nn.Module,
    blocks: Blocks | None,
    precision: Precision,
    device: torch.device,
    *,
    keep_gathered: bool = False,
    on_host: bool = False,
    reduce_dtype: ReduceType = "fp32",
    mesh: DeviceMesh | None = None,
    files: MappedFiles | None = None,
    prepare: Callable[[Iterable[nn.Module]], None] | None = None,
) -> None:
    """Shard parameters, gradients and optimizer state of `model` (built on the CPU) over the ranks of the group.

    `prepare` is given modules just before they are sharded, block by block: to bring their values, and cut them.

    `keep_gathered` keeps a block's parameters whole from its forward to its backward pass (ZeRO-2); otherwise they
    are gathered for each (ZeRO-3). Those outside the blocks (embeddings, head) are gathered once a pass either way.
    `on_host` keeps the shards off the device, in host memory; `files` keeps them in files (on the cpu device these are
    off it by themselves). `device` is the current one. `mesh` holds the ranks that share the shards out, where they are
    not all of the group; of two dimensions, each of its rows holds a copy of the shards, and gradients are summed
    inside a row first, then across.

    With bf16 and fp8 the gathered parameters are bf16 and the shards fp32; gradients are summed in `reduce_dtype` and
    kept in fp32. Inputs of a block are cast too, so that all types within it agree: the residual stream is then bf16
    where plain autocast may keep it in fp32, and losses agree to bf16's rounding, not bit for bit. On one rank what is
    outside the blocks stays fp32 and is left to autocast. Raises CannotRun where no block was found: the whole model
    would be gathered at once.
    """
    if blocks is None:
        raise CannotRun("sharding", "context", no_block("shard or offload one by one"))
    mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),))
    ranks = mesh.size()
    offload = (
        CPUOffloadPolicy(pin_memory=device.type == "cuda" and files is None) if on_host else OffloadPolicy()
    )
    low = torch.bfloat16 if precision in {"bf16", "fp8"} else None
    reduced = torch.bfloat16 if reduce_dtype == "bf16" else torch.float32
    inside = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=reduced)
    outside = MixedPrecisionPolicy(
        param_dtype=low if ranks > 1 else None,
        reduce_dtype=reduced if ranks > 1 else None,
        cast_forward_inputs=False,
    )
    for block in blocks.modules:
        if prepare is not None:
            prepare(block.modules())
        fully_shard(
            block,
            mesh=mesh,
            mp_policy=inside,
            offload_policy=offload,
            reshard_after_forward=not keep_gathered,
        )
        if files is not None:
            _rest_in(files, block)
    if prepare is not None:
        prepare(model.modules())
    fully_shard(model, mesh=mesh, mp_policy=outside, offload_policy=offload)
    if files is not None:
        _rest_in(files, model)
    gc.collect()  # cycles would hold the whole parameters that the shards were cut from


def mesh_of_nodes(device: torch.device, nodes: int) -> DeviceMesh:
    """Return the ranks of the group as a row for each node. Raises CannotRun where this node has another number."""
    each = dist.get_world_size() // nodes
    found = int(os.environ.get("LOCAL_WORLD_SIZE", each))
    if found != each:
        raise CannotRun(
            "sharding",
            "context",
            f"{found} ranks were started in this node, and hsdp shards over {each} in each of {nodes} nodes; start "
            f"as many on every machine (torch.distributed.run --nnodes={nodes} --nproc_per_node={each})",
        )
    return init_device_mesh(device.type, (nodes, each), mesh_dim_names=("replicate", "shard"))


def all_reduce_last(model: nn.Module) -> Callable[[bool], AbstractContextManager[object]]:
    """Return the reduction of hybrid sharding: across nodes in the last micro-step of a global step alone.

    Inside a node gradients are reduced in every micro-step, so that no rank keeps whole ones. What they came to until
    the last is with FSDP2, as large as the shards' gradients, and not in `parameter.grad`.
    """
    assert isinstance(model, FSDPModule)

    def reduction(last: bool) -> AbstractContextManager[object]:
        model.set_requires_all_reduce(last)
        return nullcontext()

    return reduction


def _rest_in(files: MappedFiles, module: Any) -> None:
    """Move a sharded module's own shards into files.

    FSDP2 gathers from a flat tensor, padded to the length of the largest shard, of which the parameter is a view: both
    are put on the file (`FSDPParam._init_sharded_param`).
    """
    group = module._get_fsdp_state()._fsdp_param_group
    for parameter in group.fsdp_params if group is not None else ():
        flat = files.copy_of(parameter._sharded_param_data)
        shard, dim = parameter.sharded_param, parameter.fsdp_placement.dim
        length = shard._local_tensor.size(dim) if shard._local_tensor.numel() else 0
        padded = flat.view(parameter.padded_sharded_param_size)
        parameter._sharded_param_data = flat
        shard._local_tensor = padded.narrow(dim, 0, length)


class ShardOptimizer:
    """An optimizer over this rank's shards, each a plain tensor that shares the distributed one's memory."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], over: Callable[[list[nn.Parameter]], StepOptimizer]
    ) -> None:
        """Take what makes an optimizer of shards. A rank may hold nothing of a small parameter."""
        pairs = [(p, nn.Parameter(_local(p))) for p in parameters if p.requires_grad]
        self._pairs = [(parameter, part) for parameter, part in pairs if part.numel()]
        self._optimizer = over([part for _, part in self._pairs])
        self._all = [parameter for parameter, _ in pairs]

    def step(self) -> None:
        """Update this rank's shards from their gradients."""
        for parameter, part in self._pairs:
            part.grad = None if parameter.grad is None else _local(as_kept(parameter.grad, parameter))
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients of shards and of distributed tensors."""
        self._optimizer.zero_grad()
        for parameter in self._all:
            parameter.grad = None

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of optimizer state of this rank's shards."""
        return self._optimizer.state_tensors()


def as_kept(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient in its parameter's slices: of tied embeddings torch leaves sums that are still to be taken."""
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return gradient


def _local(tensor: Tensor) -> Tensor:
    """Return the shard that shares its memory with a distributed tensor."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
