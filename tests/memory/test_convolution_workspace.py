"""What convolutions take beside their outputs, next to torch's profiler, on processors for which it was measured."""

import pytest
import torch

from autotune.worker.tracing import convolution_workspace
from tests.memory.counted import taken

aten = torch.ops.aten
ISA = torch.backends.cpu.get_cpu_capability()
avx2 = pytest.mark.skipif(ISA != "AVX2", reason="measured with AVX2 alone")
BESIDE_THE_WEIGHT = 40_000
"""Bytes that convolutions of channels side by side take beyond what is counted, at most."""


@pytest.fixture(autouse=True)
def one_thread():
    """Several sum up the gradient of a weight each in a copy of their own, on some processors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@avx2
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    ("channels", "side", "step", "padding"),
    [
        (64, 7, 2, 3),
        (64, 7, 4, 3),
        (96, 4, 4, 0),
        (64, 8, 8, 0),
        (64, 14, 14, 0),
        (64, 16, 8, 0),
    ],
)
def test_images_in_colour_are_left_as_they_are(channels, side, step, padding, samples):
    images = torch.randn(samples, 3, 8 * side + 24, 8 * side + 24)
    check(images, (channels, 3, side, side), step, padding)


@avx2
@pytest.mark.parametrize("few", [1, 4, 6])
@pytest.mark.parametrize("step", [16, 8])
def test_large_kernels_unfold_images_of_few_channels(few, step):
    check(torch.randn(2, few, 128, 128), (64, few, 16, 16), step, 0)


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
def test_channels_that_fill_blocks_are_copied_into_these(shape, padding):
    images = torch.randn(3, shape[0], *[100] * len(shape[2:]))
    check(images, shape, 1, padding, groups=shape[0] // shape[1])


@avx2
@pytest.mark.parametrize("channels", [24, 40])
def test_blocks_have_eight_channels_with_avx2(channels):
    check(torch.randn(3, channels, 50, 50), (channels, channels, 3, 3), 1, 1)


@avx2
@pytest.mark.parametrize(("shape", "step", "padding"), [((192, 96, 2, 2), 2, 0), ((64, 64, 3, 3), 1, 1)])
def test_channels_side_by_side_have_their_weight_alone_reordered(shape, step, padding):
    images = torch.randn(2, shape[1], 56, 56).to(memory_format=torch.channels_last)
    check(images, shape, step, padding, allowed=BESIDE_THE_WEIGHT)


@pytest.mark.parametrize("shape", [(24, 24, 3), (20, 4, 3, 3), (32, 3, 3, 3)])
def test_small_images_are_unfolded(shape):
    check(torch.randn(1, shape[1], *[50] * len(shape[2:])), shape, 1, 1)


def test_one_number_stands_for_all_sides():
    images, weight = torch.randn(2, 3, 32, 32), torch.randn(64, 3, 7, 7)
    once, twice = (
        list(
            convolution_workspace.forward(
                (images, weight, None, [2] * count, [3] * count, [1], False, [0], 1)
            )
        )
        for count in (1, 2)
    )
    assert once == twice


def check(images, shape, step, padding, groups=1, allowed=0):
    """See that a convolution and its backward pass take what is counted; images of few channels ask for no gradient."""
    sides = len(shape[2:])
    weight, bias = torch.randn(shape), torch.randn(shape[0])
    around = [[step] * sides, [padding] * sides, [1] * sides, False, [0] * sides, groups]
    near = allowed + 256 * torch.get_num_threads() + 256  # a copy of a vector, and what oneDNN rounds up
    args = (images, weight, bias, *around)
    assert taken(aten.convolution.default, *args) == pytest.approx(
        sum(convolution_workspace.forward(args)), abs=near
    )
    gradient = torch.randn_like(aten.convolution.default(*args))
    args = (
        gradient,
        images,
        weight,
        [shape[0]],
        *around,
        [shape[1] != images.shape[1] or shape[1] >= 8, True, True],
    )
    counted = sum(convolution_workspace.backward(args))
    assert taken(aten.convolution_backward.default, *args) == pytest.approx(counted, abs=near)
