"""Every legal pair of values of axes that a processor can run, by a covering array, against the plain run.

Of fp8, which a processor emulates, the pairs that are legal on a GPU. Left out, because a processor runs nothing of
them or does nothing with them: flash and flex attention, liger-kernel, TF32, the CUDA allocator's options; and a
loader's workers, which make batches of a user's own dataset alone.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from autotune.candidate import Candidate, DeviceKind
from autotune.lengths import Lengths
from autotune.specs import ModelSpec
from autotune.techniques.axis import Context
from autotune.worker.build.assembly import assemble
from autotune.worker.errors import CannotRun
from autotune.worker.replacing import replaced
from autotune.worker.techniques import activation_offload, compilation
from autotune.worker.techniques.sharding import process_group
from tests.data.requests import family, request
from tests.numerics.covering import Covering, Pair, Values
from tests.numerics.emulated import judged_as_on_a_gpu

STEPS, SAMPLES, SEQ_LEN = 2, 8, 32
LENGTHS = Lengths(file="lengths.csv", digest="0", counts=((5, 8), (20, 3), (SEQ_LEN, 2)))
AXES: dict[str, tuple[Any, ...]] = {
    "precision": ("fp32", "bf16", "fp16", "bf16-pure"),
    "adapters": ("none", "lora", "qlora"),
    "attention": ("sdpa", "eager"),
    "checkpointing": ("none", "selective", "alternate", "full", "offloaded"),
    "checkpointed_blocks": ("all", 1, 3),
    "sequences": ("full", "padded", "packed"),
    "loss": ("full", "chunked"),
    "compile": ("none", "regional"),
    "activation_memory_budget": ("none", "75%", "50%", "25%"),
    "activation_offload": (False, True),
    "offload": ("none", "optimizer", "gradients", "full"),
    "offload_to": ("auto", "disk"),
    "optimizer": ("adamw", "adamw-8bit", "adafactor", "momentum", "sgd"),
    "optimizer_kernel": ("fused", "foreach"),
    "optimizer_in_backward": (False, True),
}


@dataclass(frozen=True)
class Group:
    """Ranks that train together, and what several of them add to the axes."""

    ranks: int = 1
    nodes: int = 1
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    families: tuple[str, ...] = ("gpt2", "llama", "mixtral")
    kind: DeviceKind = "cpu"
    """As whose candidates these are judged; they train on a processor."""


SHARDINGS: dict[str, tuple[Any, ...]] = {
    "sharding": ("ddp", "zero1", "zero2", "fsdp2"), "reduce_dtype": ("fp32", "bf16"),
}  # fmt: skip
ACROSS_NODES: dict[str, tuple[Any, ...]] = {"sharding": ("hsdp",), "reduce_dtype": ("fp32", "bf16")}
ONE_BUDGET: dict[str, tuple[Any, ...]] = {"activation_memory_budget": ("none", "50%")}
"""One rank tries all three with every other axis. To the compiler they are one number of one option, and beside shards
each candidate that is compiled takes as long as ten others."""
FLOAT8: dict[str, tuple[Any, ...]] = {"precision": ("fp8",), **ONE_BUDGET}
WITH_LINEAR_LAYERS = ("llama", "mixtral", "qwen3")
"""GPT-2's blocks have none for fp8 to replace."""
GROUPS = {
    "one": Group(),
    "two": Group(2, axes={**SHARDINGS, **ONE_BUDGET}),
    "nodes": Group(4, 2, axes={**ACROSS_NODES, **ONE_BUDGET}),
    "cut": Group(2, axes={"tensor_parallel": (2,)}, families=("llama", "gemma2", "qwen3")),
    "cut-shards": Group(
        4,
        axes={"tensor_parallel": (2,), "sharding": ("zero2", "fsdp2"), "reduce_dtype": ("fp32", "bf16")},
        families=("llama", "gemma2", "qwen3"),
    ),
    "deepspeed": Group(
        2, axes={"engine": ("deepspeed",), "sharding": ("zero1", "zero2", "zero3"), **ONE_BUDGET}
    ),
    "float8": Group(axes=FLOAT8, families=WITH_LINEAR_LAYERS, kind="cuda"),
    "float8-two": Group(2, axes={**FLOAT8, **SHARDINGS}, families=WITH_LINEAR_LAYERS, kind="cuda"),
    "float8-nodes": Group(4, 2, axes={**FLOAT8, **ACROSS_NODES}, families=WITH_LINEAR_LAYERS, kind="cuda"),
}  # fmt: skip
SAME_BITS = frozenset(
    {
        "checkpointing", "checkpointed_blocks", "activation_offload", "offload", "offload_to", "optimizer_in_backward",
    }
)  # fmt: skip
"""Axes that move memory, or when something happens, on one rank: the same kernels meet the same numbers."""
LEARNING = ("precision", "adapters", "optimizer", "sequences")
"""Axes that change what is learned: the plain run has these values too."""


@cache
def arrays() -> dict[str, Covering]:
    """Return the candidates of each group; a group needs none for the pairs that those before it hold."""
    found: dict[str, Covering] = {}
    known: frozenset[Pair] = frozenset()
    for name, group in GROUPS.items():
        context = Context(world_size=group.ranks, nodes=group.nodes, kind=group.kind)
        found[name] = Covering({**AXES, **group.axes}, context).fill(known)
        known |= frozenset(found[name].covered)
    return found


def model_of(name: str, values: Values, ranks: int) -> ModelSpec:
    """Return a family's tiny model, without dropout where masks would differ or are refused."""
    plain = ranks > 1 or values.get("activation_memory_budget", "none") != "none"
    without = {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0} if name == "gpt2" and plain else {}
    blocks = {"gpt2": "n_layer"}.get(name, "num_hidden_layers")
    return family(name, **{blocks: 4}, **without)  # of which some are checkpointed and others not


@dataclass(frozen=True)
class Result:
    losses: list[float]
    gradients: dict[str, torch.Tensor]
    """Of the first step, whole; empty where they do not outlive the backward pass on the device."""
    refused: str = ""


def train(values: Values, spec: ModelSpec, size: int = 1, nodes: int = 1) -> Result:
    """Take two optimizer steps of as many samples, however many ranks share them."""
    micro_batch = SAMPLES * values.get("tensor_parallel", 1) // size
    judged = judged_as_on_a_gpu() if values["precision"] == "fp8" else nullcontext()
    with tempfile.TemporaryDirectory() as folder, judged:
        probe = request(spec, Path(folder), seq_len=SEQ_LEN, micro_batch=micro_batch, **values)
        lengths = None if probe.candidate.sequences == "full" else LENGTHS
        probe = probe.model_copy(update={"world_size": size, "nodes": nodes, "lengths": lengths})
        try:
            training = assemble(probe)
            losses, gradients = [], {}
            for step in range(STEPS):
                batch = training.batch(step, micro_batch)
                (share,) = training.shares([batch])
                with training.reduction(True):
                    loss = training.loss(batch)
                    (loss * share).backward()
                if step == 0 and probe.candidate.engine == "torch":
                    named = training.model.named_parameters()
                    gradients = {
                        name.removeprefix("module."): _whole(p.grad)
                        for name, p in named
                        if p.grad is not None
                    }
                training.optimizer.step()
                training.optimizer.zero_grad()
                losses.append(training.ranks.mean(float(loss.detach()) * share))
            training.close()
        except CannotRun as error:
            return Result([], {}, str(error))
    return Result(losses, gradients)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def plain(values: Values) -> Values:
    """Return the values of the plain run that a candidate is compared with."""
    return {axis: values[axis] for axis in LEARNING}


def changes(values: Values) -> set[str]:
    """Return the axes by which a candidate differs from its plain run."""
    defaults = Candidate()
    return {
        axis for axis, value in values.items() if axis not in LEARNING and value != getattr(defaults, axis)
    }


@contextmanager
def on_tiny_models() -> Iterator[None]:
    """Let tiny activations leave, and the compiler run its graph's operators one by one, as they are without it."""
    with replaced([(activation_offload, "SMALL", 1 << 10), (compilation, "BACKEND", "aot_eager")]):
        yield


def run(group: str) -> list[tuple[Values, str, Result]]:
    """Train every candidate of a group with every family, as one of its ranks."""
    size, nodes = GROUPS[group].ranks, GROUPS[group].nodes
    results = []
    with on_tiny_models():
        for values in arrays()[group].candidates:
            for name in GROUPS[group].families:
                torch._dynamo.reset()
                results.append((values, name, train(values, model_of(name, values, size), size, nodes)))
                gc.freeze()  # sharding collects garbage, and libraries make a million objects that are none
    return results


def forked(rank: int, group: str, file: str) -> None:
    """Be one of several processes that share what was imported."""
    faulthandler.enable()
    size, nodes = GROUPS[group].ranks, GROUPS[group].nodes
    place = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size // nodes,
        "AUTOTUNE_RENDEZVOUS": f"{file}.at",
    }
    os.environ.update({name: str(value) for name, value in place.items()}, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    cut = max(GROUPS[group].axes.get("tensor_parallel", (1,)))
    formed = process_group.form_group(torch.device("cpu"), size, cut)
    with replaced(
        [(process_group, "form_group", lambda *_: formed), (process_group, "end_group", lambda: None)]
    ):
        results = run(group)
    if rank == 0:
        torch.save([(values, name, vars(result)) for values, name, result in results], file)
    process_group.end_group()


def launch(group: str, file: str) -> None:
    """Fork the ranks of a group, and wait for them; once more where one died of SIGSEGV.

    That happened once (torch 2.13, gloo; docs/log.md), for a reason that is not known: where Python was is printed.
    """
    for again in (True, False):
        try:
            torch.multiprocessing.start_processes(
                forked, (group, file), GROUPS[group].ranks, start_method="fork"
            )
            return
        except torch.multiprocessing.ProcessExitedException as error:
            if error.signal_name != "SIGSEGV" or not again:
                raise
            print(f"{error}: trying once more", file=sys.stderr, flush=True)
            Path(f"{file}.at").unlink(missing_ok=True)  # by which the ranks found each other


if __name__ == "__main__":
    launch(sys.argv[1], sys.argv[2])
