"""Many ranks in one process, for a trace: the fullest of a group whose other ranks do not exist.

torch's `fake` backend answers every collective at once. Buffers are made by the real code of DDP, ZeRO and FSDP2, in
the order in which it runs. On a GPU that order is the CPU's too: FSDP2's streams wait by events, so what it gathers
ahead (the next block's parameters beside the current one's) is alive at the same points of the program. Not traced:
what NCCL takes for itself, and that blocks of side streams are cached apart from those of the main one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as _functional_collectives
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.tensor import _collective_utils, _dispatch, _redistribute, _sharding_prop
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from autotune.candidate import Candidate
from autotune.worker.replacing import replaced
from autotune.worker.techniques.sharding import fully_sharded, process_group, rank0_init, replicated
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.training import Ranks

BUCKET_BYTES = 25 * 2**20
"""DDP's default size of a bucket (`bucket_cap_mb`)."""


@contextmanager
def fake_ranks(recorder: StorageRecorder, device: torch.device, candidate: Candidate) -> Iterator[None]:
    """While open, groups are formed with ranks that do not exist, and sharding works on fake tensors of `device`."""

    def alloc_storage(tensor: Tensor) -> None:
        size = tensor.numel() * tensor.itemsize
        if tensor.untyped_storage().size() != size:
            tensor.untyped_storage().resize_(size)
            recorder.resized(tensor, "parameter")

    def free_storage(tensor: Tensor) -> None:
        if tensor.untyped_storage().size():
            tensor.untyped_storage().resize_(0)
            recorder.resized(tensor, "parameter")

    deepspeed = candidate.engine == "deepspeed"
    form_group = form_last if deepspeed and candidate.sharding == "zero2" else form_first
    changes: list[tuple[Any, str, Any]] = [
        (process_group, "form_group", form_group),
        (replicated, "DistributedDataParallel", _Replica),
        (fully_sharded, "fully_shard", _fully_shard),
        (rank0_init.Rank0Weights, "bring", lambda *_, **__: None),  # rank 0 has everything
        (_fsdp_param, "alloc_storage", alloc_storage),
        (_fsdp_param, "free_storage", free_storage),
        (_fsdp_param_group, "alloc_storage", alloc_storage),
        *_eager_tensors(),
        # It compares addresses, which fake tensors have none of, and would pad anew what is as it was.
        (_fsdp_param.FSDPParam, "reset_sharded_param", lambda _: None),
    ]
    if deepspeed:
        from autotune.worker.tracing.fakes.deepspeed import fake_engine  # late: it takes a second

        changes += fake_engine(recorder, device, move)
    with replaced(changes), ExitStack() as ending:
        ending.callback(process_group.end_group)
        yield


def _eager_tensors() -> list[tuple[Any, str, Any]]:
    """Let distributed tensors take the paths of eager mode, which a mode for fake tensors turns them from.

    In eager mode they remember how an operator's slices follow from its arguments'. The shapes behind that are found
    under a mode of their own, or they would be recorded as allocations. What a collective gives is there at once, where
    a wait for it would be recorded as a copy.
    """
    changes: list[tuple[Any, str, Any]] = [
        (_sharding_prop, "detect_fake_mode", lambda *_: None),
        (_functional_collectives, "_maybe_wrap_tensor", lambda tensor: tensor),
    ]
    for module in (_functional_collectives, _collective_utils, _dispatch, _redistribute, _sharding_prop):
        if hasattr(module, "_are_we_tracing"):
            changes.append((module, "_are_we_tracing", lambda: False))
    return changes


def form_first(device: torch.device, size: int, alike: int = 1) -> Ranks:
    """Form a group and return its first rank: others' shards are as large, or smaller by a remainder."""
    return form_as(device, Ranks(0, size, alike))


def form_last(device: torch.device, size: int, alike: int = 1) -> Ranks:
    """Form a group and return its last rank, which holds most under DeepSpeed's ZeRO-2.

    Each rank takes memory for the gradients of its shard when the first of them is reduced. Those of the last rank are
    of the model's last layers, which come first in backward, when nearly all activations are still alive. Where these
    are few, another rank may hold as much and a thousandth more.
    """
    return form_as(device, Ranks(size - 1, size, alike))


def form_as(device: torch.device, ranks: Ranks) -> Ranks:
    """Form a group as one of its ranks, and return what it was given."""
    backend = "fake" if device.type == "cpu" else f"cpu:fake,{device.type}:fake"
    dist.init_process_group(backend, store=FakeStore(), rank=ranks.rank, world_size=ranks.size)
    return ranks


class _Replica(DistributedDataParallel):  # type: ignore[misc]  # mypy does not follow torch
    """DDP without what looks into tensors: comparing ranks, searching unused parameters, laying buckets out anew."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        divide = dist._compute_bucket_assignment_by_size

        def in_buckets(tensors: Any, limits: Any, *rest: Any) -> Any:  # noqa: ARG001 - one bucket, else
            return divide(tensors, [dist._DEFAULT_FIRST_BUCKET_BYTES, BUCKET_BYTES], *rest)

        options |= {"find_unused_parameters": False, "init_sync": False}
        with replaced([(dist, "_compute_bucket_assignment_by_size", in_buckets)]):
            super().__init__(module, **options)
        # The fake backend's work returns nothing; a hook's signature is checked by its annotations, had it any.
        self._compressed = False
        super().register_comm_hook(None, lambda _, bucket: _arrived(bucket, self._compressed))
        self.reducer: Any = _Reducer(self.reducer)

    def register_comm_hook(self, state: object, hook: Any) -> None:  # noqa: ARG002 - the method's signature
        """Note that buckets are compressed, which is what a replica has a hook for; DDP takes one."""
        self._compressed = True


def _arrived(bucket: Any, compressed: bool) -> Any:
    """Return the bucket as its hook would: averaged at once, with compression as a copy that is then let go.

    Not covered: copies of several buckets at a time, where a link is slow.
    """
    if compressed:
        bucket.buffer().copy_(bucket.buffer().to(torch.bfloat16).div_(1.0))
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _Reducer:
    """DDP's reducer, which keeps its buckets as they are."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _fully_shard(module: nn.Module, *, mesh: Any, **options: Any) -> Any:
    move(module, torch.device("cpu") if mesh.device_type == "cpu" else torch.device(mesh.device_type, 0))
    return fully_shard(module, mesh=mesh, **options)


def move(module: nn.Module, device: torch.device) -> None:
    """Move what a module holds whole to a device, as new tensors: a fake tensor's data cannot move."""
    moved: dict[int, Tensor] = {}

    def on_device(tensor: Tensor) -> Tensor:
        copy = tensor.detach().to(device)
        if isinstance(tensor, nn.Parameter):
            copy = nn.Parameter(copy, requires_grad=tensor.requires_grad)
        return moved.setdefault(id(tensor), copy)

    kept: list[Tensor] = []  # so that no number is used twice
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None or hasattr(tensor, "to_local") or tensor.device == device:
                    continue
                kept.append(tensor)
                tensors[name] = moved.get(id(tensor)) if id(tensor) in moved else on_device(tensor)
    kept.clear()
