"""What a model's build gives, and the memory that it takes."""

import re
import tempfile
from pathlib import Path

import torch

from autotune.worker.build.assembly import assemble
from autotune.worker.replacing import replaced
from autotune.worker.techniques.sharding import rank0_init
from tests.data.requests import family, request

LARGE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12}
"""A Llama of 12 blocks of 3.75 MiB each, 46 MiB in all."""


def built(name, size=1, readable=True, **candidate):
    """Return the tensors of a tiny model as its ranks have them together after they built it, by their names."""
    with (
        tempfile.TemporaryDirectory() as folder,
        replaced(() if readable else [(rank0_init, "skeleton", refusing)]),
    ):
        probe = request(family(name), Path(folder), **candidate)
        training = assemble(probe.model_copy(update={"world_size": size}))
        named = [*training.model.named_parameters(), *training.model.named_buffers()]
        tensors = {key: whole(tensor) for key, tensor in named}
        training.close()
    return tensors


def refusing():
    """Stand for a model whose code reads its weights while it is built."""
    raise RuntimeError("Tensor.item() cannot be called on meta tensors")


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def peaks_of_build(size, **candidate):
    """Return by rank the most MiB that building a larger model took, mapped files included, and the model's size."""
    with tempfile.TemporaryDirectory() as folder:
        probe = request(family("llama", **LARGE), Path(folder), **candidate)
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        training = assemble(probe.model_copy(update={"world_size": size}))
        took = status("VmHWM") - before
        bytes_ = sum(parameter.numel() * parameter.itemsize for parameter in training.model.parameters())
        peaks = torch.zeros(size)
        peaks[training.ranks.rank] = took
        torch.distributed.all_reduce(peaks)
        training.close()
    return peaks.tolist(), bytes_ / 2**20


def status(field):
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
