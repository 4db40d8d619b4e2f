"""What attention takes beside its outputs, by the kernel that a GPU chooses for it."""

import pytest
import torch

from autotune.worker.tracing.kernel_workspace import ON_CUDA

aten = torch.ops.aten
CUDNN = aten._scaled_dot_product_cudnn_attention_backward.default
FLASH = aten._scaled_dot_product_flash_attention_backward.default
EFFICIENT = aten._scaled_dot_product_efficient_attention_backward.default
SHAPES = [
    (4, 12, 12, 1024, 64),  # gpt2
    (2, 32, 8, 2048, 64),  # llama-3.2-1b: four queries share keys and values
    (1, 32, 8, 4096, 128),  # llama-3.1-8b
    (3, 5, 5, 100, 40),  # nothing that a kernel rounds to
]
"""Samples, heads, those of keys and values, sequence length, width of a head."""


def scratch(kernel, batch, heads, kv_heads, length, head, dtype=torch.bfloat16):
    query = torch.empty(batch, heads, length, head, dtype=dtype, device="meta")
    key = torch.empty(batch, kv_heads, length, head, dtype=dtype, device="meta")
    return list(ON_CUDA[kernel]((query, query, key, key), {}))


def test_cudnn_takes_row_sums_and_the_gradient_of_queries_in_one_buffer():
    elements = 4 * 12 * 1024
    assert scratch(CUDNN, *SHAPES[0]) == [4 * (elements * 64 + elements)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_that_is_traced_in_its_place_takes_no_less(shape):
    cudnn, flash = (sum(scratch(kernel, *shape)) for kernel in (CUDNN, FLASH))
    assert cudnn <= flash
    if shape[3] % 128 == 0:
        assert flash == cudnn, "nothing is rounded up"


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1] == shape[2]])
def test_so_does_the_one_for_masks(shape):
    assert sum(scratch(CUDNN, *shape)) <= sum(scratch(EFFICIENT, *shape))
