"""A norm as liger-kernel has it: what Python allocates and asks the device, without what the kernels compute."""

import torch
from triton.runtime import JITFunction


@JITFunction
def norm_forward(X, W, Y):
    """Write Y."""


@JITFunction
def norm_backward(dY, X, W, sums):
    """Write over dY."""


def forward(X, W):
    Y = torch.empty_like(X)
    norm_forward[(X.shape[0],)](X, W, Y)
    return Y


def backward(dY, X, W):
    rows = 1
    if X.device.type == "cuda":
        rows = torch.cuda.get_device_properties(X.device).multi_processor_count
    sums = torch.empty(rows, X.shape[-1], dtype=torch.float32, device=X.device)
    if not torch.equal(dY, torch.tensor(1.0, device=dY.device)):
        norm_backward[(rows,)](dY, X, W, sums=sums)
    return dY, sums.sum(0)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, W):
        ctx.save_for_backward(X, W)
        return forward(X, W)

    @staticmethod
    def backward(ctx, dY):
        return backward(dY, *ctx.saved_tensors)
