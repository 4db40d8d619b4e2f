"""What kernels take beside their outputs: attention as a GPU chooses it; a processor's own, beside torch's profiler."""

from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from autotune.worker.tracing.kernel_workspace import ON_CPU, ON_CUDA, emulates_bf16

aten = torch.ops.aten
ISA = torch.backends.cpu.get_cpu_capability()
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


IN_COLOUR = [(64, 7, 2, 3), (64, 7, 4, 3), (96, 4, 4, 0), (64, 8, 8, 0), (64, 14, 14, 0), (64, 16, 8, 0)]
"""Channels, side of the kernel, step and padding of what vision models begin with."""


@pytest.mark.skipif(ISA != "AVX2", reason="measured with AVX2 alone")
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(("channels", "side", "step", "padding"), IN_COLOUR)
def test_convolutions_of_images_in_colour_keep_weight_or_output_in_blocks(
    channels, side, step, padding, samples
):
    check_convolution(
        torch.randn(samples, 3, 8 * side + 24, 8 * side + 24), (channels, 3, side, side), step, padding
    )


@pytest.mark.skipif(ISA not in ("AVX2", "AVX512"), reason="measured with AVX2 and AVX-512")
@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((64, 64, 3, 3), 1),
        ((48, 1, 5, 5), 1),
        ((48, 1, 5, 5), 2),
        ((48, 48, 3), 1),
        ((48, 1, 4), 1),
        ((48, 1, 4), 3),
    ],
)
def test_convolutions_of_channels_that_fill_blocks_keep_copies_in_these(shape, padding):
    images = torch.randn(3, shape[0], *[100] * len(shape[2:]))
    check_convolution(images, shape, 1, padding, groups=shape[0] // shape[1])


@pytest.mark.skipif(ISA != "AVX2", reason="measured with AVX2 alone")
@pytest.mark.parametrize(("shape", "step", "padding"), [((192, 96, 2, 2), 2, 0), ((64, 64, 3, 3), 1, 1)])
def test_images_with_channels_last_have_their_weight_alone_reordered(shape, step, padding):
    images = torch.randn(2, shape[1], 56, 56).to(memory_format=torch.channels_last)
    check_convolution(images, shape, step, padding, abs=40_000)


@pytest.mark.parametrize("shape", [(24, 24, 3), (20, 4, 3, 3), (32, 3, 3, 3)])
def test_small_images_are_unfolded(shape):
    check_convolution(torch.randn(1, shape[1], *[50] * len(shape[2:])), shape, 1, 1)


def check_convolution(images, shape, step, padding, groups=1, abs=0):
    """See that a convolution and its backward pass take what the table says; images in colour ask for no gradient."""
    weight, bias = torch.randn(shape), torch.randn(shape[0])
    around = [
        *([number] * len(shape[2:]) for number in (step, padding, 1)),
        False,
        [0] * len(shape[2:]),
        groups,
    ]
    check(aten.convolution.default, images, weight, bias, *around, abs=abs)
    gradient = torch.randn_like(aten.convolution.default(images, weight, bias, *around))
    asked = [images.shape[1] != 3, True, True]
    check(aten.convolution_backward.default, gradient, images, weight, [shape[0]], *around, asked, abs=abs)


def check(operator, *args, abs=0):
    """See that an operator takes what the table says, but for a copy of a vector and what oneDNN rounds up."""
    operator(*args)  # its first call compiles a kernel
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = operator(*args)
    moves = [
        event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    results = [value for value in (result if isinstance(result, tuple) else (result,)) if value is not None]
    made = sum(
        value.untyped_storage().nbytes() for value in results if not any(value is given for given in args)
    )
    taken = max(accumulate(moves), default=0) - made
    assert taken == pytest.approx(sum(ON_CPU[operator](args)), abs=abs + 256 * torch.get_num_threads() + 256)
