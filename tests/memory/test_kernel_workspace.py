"""What kernels take beside their outputs: attention as a GPU chooses it; a processor's own, beside torch's profiler."""

import pytest
import torch

from autotune.worker.tracing.kernel_workspace import ON_CPU, ON_CUDA, emulates_bf16
from tests.memory.counted import taken

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
    return list(ON_CUDA[kernel]((query, query, key, key)))


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


PRODUCTS = [(64, 4096, 64), (2, 256, 256), (100, 300, 70), (5003, 64, 128), (16, 16, 16)]
"""Rows, inner sizes, columns: the last takes nothing."""


def test_a_product_in_bf16_takes_its_sum_in_fp32_where_a_processor_emulates_bf16():
    if not emulates_bf16():
        pytest.skip("oneDNN has products in bf16 of its own here, or none")
    for rows, inner, columns in PRODUCTS:
        first, second = (
            torch.randn(shape, dtype=torch.bfloat16) for shape in ((rows, inner), (inner, columns))
        )
        bias = torch.randn(columns, dtype=torch.bfloat16)
        several = first.expand(5, -1, -1).contiguous(), second.expand(5, -1, -1).contiguous()
        check(aten.mm.default, first, second)
        check(aten.mm.default, first.t().contiguous().t(), second)
        check(aten.addmm.default, bias, first, second)
        check(aten.addmm_.default, torch.zeros(rows, columns, dtype=torch.bfloat16), first, second)
        check(aten.bmm.default, *several)
        check(aten.baddbmm.default, torch.zeros(5, rows, columns, dtype=torch.bfloat16), *several)


@pytest.mark.parametrize(
    "types", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32,) * 2]
)
def test_operands_of_two_types_are_copied_to_the_type_of_both(types):
    first, second = (torch.randn(500, 250, dtype=dtype) for dtype in types)
    for name in ("add", "sub", "mul", "div"):
        check(getattr(aten, name).Tensor, first, second)
        check(getattr(aten, name).Tensor, first, second[0])
        check(getattr(aten, f"{name}_").Tensor, first, second)
        check(getattr(aten, f"{name}_").Tensor, first, second[0])
        check(getattr(aten, f"{name}_").Tensor, first[:100], second[:100])
        check(getattr(aten, f"{name}_").Tensor, first, torch.tensor(2.0, dtype=second.dtype))


def test_logsumexp_copies_its_input():
    check(aten.logsumexp.default, torch.randn(500, 250), [1])
    check(aten.logsumexp.default, torch.randn(500, 250), [0], True)


def test_the_softmax_of_unfused_attention_notes_what_is_masked():
    check(aten._safe_softmax.default, torch.randn(4, 8, 64, 64), -1)


def test_losses_of_elements_are_kept_until_they_are_reduced():
    first, second = torch.randn(500, 250), torch.randn(500, 250)
    for operator in (aten.mse_loss.default, aten.smooth_l1_loss.default):
        for reduction in ([], [0], [2]):
            check(operator, first, second, *reduction)


def check(operator, *args):
    """See that an operator takes what the table says, but for a copy of a vector and what oneDNN rounds up."""
    allowed = 256 * torch.get_num_threads() + 256
    assert taken(operator, *args) == pytest.approx(sum(ON_CPU[operator](args)), abs=allowed)
