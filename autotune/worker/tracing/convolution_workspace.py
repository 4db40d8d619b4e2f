"""What convolutions allocate on a processor beside their outputs: oneDNN's reordered copies, and unfolded images.

Measured beside torch's profiler (torch 2.13), one pass after the other: 1- and 2-dimensional, dense, grouped and
depthwise, 24 to 256 channels, kernels of 3 to 5, 1 to 8 samples and 1 and 2 threads, to the byte; with AVX-512 from 48
channels on, with AVX2 all. What was measured of other shapes stands with its function. Not covered: other types than
fp32, channels that do not fill oneDNN's blocks but for the few of an image, and padded kernels of 14 or more, some
percent off forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

AVX512, AVX2 = 16, 8
BLOCK = AVX512 if torch.backends.cpu.get_cpu_capability() == "AVX512" else AVX2
"""Channels that oneDNN keeps together in its own layout: as many as a register holds in fp32."""
LARGEST_DIRECT = 13
"""Side of the largest kernel that oneDNN lays over an image as it is: from 14 on it unfolds the image."""


def forward(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield the bytes that `aten.convolution` takes: input, weight and output in blocks, or one of them alone."""
    images, weight, _, stride, padding, dilation, _, _, groups = args
    if images.dtype != torch.float32 or images.dim() not in (3, 4):
        return
    taken, kept = _bytes(images), _bytes(weight)
    positions = _positions(images, weight, stride, padding, dilation)
    made = images.shape[0] * positions * weight.shape[0] * images.element_size()
    if _unfolds(images, weight, groups):
        yield _unfolded(weight, positions)
    elif _few_channels(images, groups):
        yield max(kept, made)
    elif not _in_blocks(images, weight, stride, dilation, groups):
        return
    elif _channels_last(images):
        yield kept if groups == images.shape[1] else 2 * kept
    else:
        yield max(taken + kept, made)
        if not images.is_contiguous():
            yield taken


def backward(args: tuple[Any, ...]) -> Iterable[int]:
    """Yield the bytes that `aten.convolution_backward` takes: mostly gradient and input in blocks.

    Depthwise, one of them, or the input's gradient before it is copied, whichever is more; of kernels three wide both
    with AVX2.
    """
    gradient, images, weight = args[:3]
    stride, dilation, groups = args[4], args[6], args[9]
    if images.dtype != torch.float32 or images.dim() not in (3, 4):
        return
    depthwise = groups == images.shape[1]
    if _unfolds(images, weight, groups):
        yield _unfolded(weight, math.prod(gradient.shape[2:]))
    elif _few_channels(images, groups):
        yield _backward_to_few(gradient, images, weight)
        if not gradient.is_contiguous():
            yield _bytes(gradient)
    elif not _in_blocks(images, weight, stride, dilation, groups):
        return
    elif _channels_last(images):
        yield (2 if depthwise else 3) * _bytes(weight)
        if not _channels_last(gradient):
            yield _bytes(gradient)
    else:
        if depthwise and not (BLOCK == AVX2 and weight.shape[-1] == 3):
            yield max(_bytes(gradient), _bytes(images) - _bytes(weight))
        else:
            yield _bytes(gradient) + _bytes(images)
        for tensor in (gradient, images):
            if not tensor.is_contiguous():
                yield _bytes(tensor)


def _backward_to_few(gradient: Any, images: Any, weight: Any) -> int:
    """Return what the weight's gradient takes of images of few channels, whose own gradient is not asked for.

    Small kernels: the gradient or the weight in blocks; measured with AVX2 for three channels, to 256 B: of others
    more is taken. Large ones, as of patches: each thread's unfolded image and four copies of the weight's gradient;
    measured for kernels of 14 to 32, as wide as their step and not, 1 to 6 channels, with AVX-512 of 16 and 32 alone.
    """
    kept = _bytes(weight)
    if max(weight.shape[2:]) <= LARGEST_DIRECT:
        return max(_bytes(gradient), kept + 256)
    threads = 1 if images.shape[0] == 1 else torch.get_num_threads()
    return int(threads * (4 * kept + _unfolded(weight, math.prod(gradient.shape[2:]))) + 256)


def _unfolds(images: Any, weight: Any, groups: int) -> bool:
    """Tell whether torch's own kernel unfolds a small image (`use_mkldnn` in ATen/native/Convolution.cpp)."""
    size = weight.shape[2:]
    wide = len(size) == 2 and min(size) > 3
    return groups == 1 and images.shape[0] == 1 and images.numel() <= 20480 and not wide and max(size) > 1


def _few_channels(images: Any, groups: int) -> bool:
    """Tell whether the channels do not fill a block, as those of an image in colour: oneDNN leaves the input as it is.

    Measured with AVX2 for 1, 3, 4 and 6 channels and kernels of 3 to 32.
    """
    return groups == 1 and images.dim() == 4 and images.shape[1] < AVX2


def _in_blocks(images: Any, weight: Any, stride: Any, dilation: Any, groups: int) -> bool:
    """Tell whether oneDNN computes a convolution in its own layout (`use_mkldnn` in ATen/native/Convolution.cpp)."""
    size = weight.shape[2:]
    plain = all(step == 1 for step in (*stride, *dilation))
    if plain and images.shape[0] < 16 and all(side == 1 for side in size) and torch.get_num_threads() == 1:
        return False
    depthwise = groups == images.shape[1] == weight.shape[0]
    channels = (groups,) if depthwise else (images.shape[1] // groups, weight.shape[0] // groups)
    return all(count % BLOCK == 0 for count in channels)


def _channels_last(images: Any) -> bool:
    """Tell whether the channels of a pixel lie side by side: nothing but the weight is reordered then.

    Measured with AVX2 and one thread, kernels of 2 and 3, 48 to 768 channels, 2 and 5 samples. Not covered: two
    threads, with which a gradient took up to two copies more, and depthwise kernels of 7, of which it takes 65.
    """
    last: bool = images.is_contiguous(memory_format=torch.channels_last) if images.dim() == 4 else False
    return last and not images.is_contiguous()


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _unfolded(weight: Any, positions: int) -> int:
    """Return the bytes of what a kernel sees of one image at each of its positions."""
    return _bytes(weight) // int(weight.shape[0]) * positions


def _positions(images: Any, weight: Any, stride: Any, padding: Any, dilation: Any) -> int:
    """Return at how many places a kernel comes to lie on one image. One number may stand for all sides."""
    sides, kernel = images.shape[2:], weight.shape[2:]
    steps, edges, gaps = (
        tuple(given) * len(sides) if len(given) == 1 else given for given in (stride, padding, dilation)
    )
    return math.prod(
        (side + 2 * edge - gap * (width - 1) - 1) // step + 1
        for side, width, step, edge, gap in zip(sides, kernel, steps, edges, gaps, strict=True)
    )
