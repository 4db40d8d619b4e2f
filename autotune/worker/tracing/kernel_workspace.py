"""Memory that kernels allocate beside their outputs and give back before they return, by operator and device.

Fake tensors have no kernels, so what is in here is all that a trace knows of it. Where torch prefers cuDNN's attention
(on Hopper and data-centre Blackwell), a trace runs the flash or the memory-efficient kernel in its place: these take at
least what cuDNN's does. Not covered: what cuDNN's plans take beside what its frontend tells, and its
convolutions, whose scratch is not documented, split-KV buffers of flash attention without dropout on small batches,
reductions' semaphores, and on the CPU what `convolution_workspace` says, and products in bf16 on processors that have
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from autotune.worker.tracing import convolution_workspace

aten = torch.ops.aten

Workspace = Callable[[tuple[Any, ...]], Iterable[int]]
"""The sizes (bytes) of a kernel's scratch buffers, from its positional arguments."""

_LOW_PRECISION = (torch.bfloat16, torch.float16)


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _flash_backward(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield dq in float32, the softmax's row sums, and dk, dv per query head where keys and values are shared.

    `mha_bwd` in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
    """
    _, query, key = args[:3]
    batch, heads, length, head = query.shape
    kv_heads, kv_length = key.shape[1], key.shape[2]
    rows = _rounded(length, 128)
    yield batch * rows * heads * _rounded(head, 32 if head <= 128 else 64) * 4
    yield batch * heads * rows * 4
    if kv_heads != heads:
        yield from [batch * kv_length * heads * head * query.element_size()] * 2


def _efficient_backward(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield the row sums, and dq in float32 where the type is narrower (`attention_backward.cu`)."""
    query = args[1]
    batch, heads, length, head = query.shape
    yield batch * heads * _rounded(length, 32) * 4
    if query.dtype in _LOW_PRECISION:
        yield batch * heads * _rounded(length, 64) * _rounded(head, 64) * 4


def _cudnn_backward(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield the row sums and dq in float32, as one buffer; dk and dv per query head where keys and values are shared.

    `SDPABackwardNode::get_fe_workspace_size_node` in cudnn-frontend's node/scaled_dot_product_flash_attention.h, for
    cuDNN 9, without a gradient of the mask, not deterministic; torch takes it from the caching allocator
    (`run_cudnn_SDP_bprop` in aten/src/ATen/native/cudnn/MHA.cpp). That cuDNN itself keeps dk and dv per query head is
    assumed: the frontend leaves them to it. Its forward pass has no buffer there.
    """
    query, key = args[1:3]
    batch, heads, length, head = query.shape
    kv_heads, kv_length = key.shape[1], key.shape[2]
    yield batch * heads * length * (head + 1) * 4
    if kv_heads != heads:
        yield from [batch * kv_length * heads * head * query.element_size()] * 2


def _embedding_backward(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield sorted indices with their origins, twice while sorting, and partial sums of ten rows each (`Embedding.cu`).

    Up to 3072 indices the kernel sorts nothing; these bytes are counted there too, so that sizes stay affine in the
    micro-batch: some 5 MB too many for a width of 4096.
    """
    gradient, indices = args[:2]
    count = indices.numel()
    yield from [count * indices.element_size()] * 4
    yield count * gradient.shape[-1] * 4 // 10


def _logsumexp(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield its largest numbers, and the input less them (`logsumexp_out_impl` in ATen/native/ReduceOps.cpp)."""
    numbers, over = args[:2]
    count = math.prod(numbers.shape[dimension] for dimension in over)
    yield numbers.numel() // count * numbers.element_size()
    yield numbers.numel() * numbers.element_size()


def _safe_softmax(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield which numbers are masked, and which rows are whole: a byte each (ATen/native/transformers/attention.cpp).

    It is the softmax of attention that no fused kernel computes.
    """
    numbers, over = args[:2]
    yield numbers.numel()
    yield numbers.numel() // numbers.shape[over]


def _reduced_loss(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield the loss of each element, before its mean or sum is taken (ATen/native/BinaryOps.cpp, PointwiseOps)."""
    first, second = args[:2]
    reduction = args[2] if len(args) > 2 else 1
    if reduction:
        yield torch.broadcast_shapes(first.shape, second.shape).numel() * first.element_size()


ON_ANY: dict[Any, Workspace] = {
    aten.logsumexp.default: _logsumexp,
    aten._safe_softmax.default: _safe_softmax,
    aten.mse_loss.default: _reduced_loss,
    aten.smooth_l1_loss.default: _reduced_loss,
}
"""What torch composes in the same way for every device."""

ON_CUDA: dict[Any, Workspace] = {
    **ON_ANY,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
}


def _matrix_product(first: Any, second: Any) -> Iterable[int]:
    """Yield oneDNN's sum in fp32 of a product in bf16, on a processor that only emulates bf16.

    Of several matrices each thread keeps that of the one it works on. Measured for shapes from 16 x 8192 x 16 to
    8192 x 16 x 8192 and 1 to 24 matrices, transposed or not, 1 and 2 threads: to 256 B a thread, by which oneDNN rounds
    up (torch 2.13, AVX-512). fp16 takes none there, and neither do products of at most 16 x 16 x 16 in all
    (`checksize` in aten/src/ATen/native/mkldnn/Matmul.cpp); of a single row it depends on strides, and is counted.
    """
    if first.dtype != torch.bfloat16 or not emulates_bf16():
        return
    *batch, rows, _ = first.shape
    columns = second.shape[-1]
    if first.numel() * columns > 16**3:
        matrices = min(batch[0], torch.get_num_threads()) if batch else 1
        yield matrices * rows * columns * 4 + 128


def _product(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield what `mm` and `bmm` take."""
    return _matrix_product(args[0], args[1])


def _sum_with_product(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield what `addmm` and `baddbmm` take."""
    return _matrix_product(args[1], args[2])


def _of_two_types(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield copies, in the type of both, of what an elementwise operator is given in another; a GPU casts in registers.

    `compute_types` in aten/src/ATen/TensorIterator.cpp, which leaves numbers and tensors of one value as they are.
    """
    tensors = [value for value in args[:2] if isinstance(value, torch.Tensor)]
    if len({tensor.dtype for tensor in tensors}) == 2:
        common = torch.result_type(*tensors)
        yield from (
            tensor.numel() * common.itemsize for tensor in tensors if tensor.dtype != common and tensor.dim()
        )


def _into_first(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield the same, and the result before it is cast to the first's type."""
    yield from _of_two_types(args)
    if isinstance(args[1], torch.Tensor):
        common = torch.result_type(args[0], args[1])
        if common != args[0].dtype:
            yield args[0].numel() * common.itemsize


@cache
def emulates_bf16() -> bool:
    """Tell whether oneDNN computes bf16 with AVX-512 alone, in fp32."""
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported and not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _update_8bit(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield five copies of the parameter in float32: both moments, the gradient, and a root with its quotient.

    `_optimizer_update_8bit_blockwise_cpu` in bitsandbytes/backends/cpu/ops.py; its CUDA kernel has none.
    """
    yield from [args[2].numel() * 4] * 5


def _gloo_all_gather(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield all ranks' parts in one buffer, before they are copied to the output (`AsyncAllgatherWork`)."""
    yield args[0].numel() * args[0].element_size()


def _gloo_reduce_scatter(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield a copy of the whole input, which is reduced on every rank (`reduce_scatter_tensor_coalesced`)."""
    yield args[1].numel() * args[1].element_size()


ON_CPU: dict[Any, Workspace] = {
    **ON_ANY,
    **dict.fromkeys((aten.mm.default, aten.mm.out, aten.bmm.default, aten.bmm.out), _product),
    **dict.fromkeys((aten.addmm.default, aten.addmm.out, aten.addmm_.default), _sum_with_product),
    **dict.fromkeys((aten.baddbmm.default, aten.baddbmm.out, aten.baddbmm_.default), _sum_with_product),
    aten.convolution.default: convolution_workspace.forward,
    aten.convolution_backward.default: convolution_workspace.backward,
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), _of_two_types),
    **dict.fromkeys((aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor), _into_first),
    torch.ops.c10d._allgather_base_.default: _gloo_all_gather,
    torch.ops.c10d._reduce_scatter_base_.default: _gloo_reduce_scatter,
}
"""Collectives run on gloo there (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp); those of NCCL take none."""


def of_device(cuda: bool) -> dict[Any, Workspace]:
    """Return the table of a device, with the operators of bitsandbytes if that was imported."""
    if cuda:
        return ON_CUDA
    update = getattr(torch.ops.bitsandbytes, "optimizer_update_8bit_blockwise", None)
    return ON_CPU if update is None else {**ON_CPU, update.default: _update_8bit}
