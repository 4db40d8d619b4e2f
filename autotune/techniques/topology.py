"""Where a legal candidate can run: on which ranks and devices, with which model and data; else why it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from autotune.candidate import Candidate
from autotune.specs import ModelFacts

Kind = Literal["cpu", "cuda"]


def unmeasured(candidate: Candidate, with_lengths: bool) -> str | None:
    """Return why rows cannot hold what the candidate says, with or without a length histogram, or None."""
    if candidate.sequences == "full" and with_lengths:
        return "with a length histogram sequences are padded or packed: no row is full of one but the longest"
    if candidate.sequences != "full" and not with_lengths:
        return f"{candidate.sequences} sequences need the lengths of the dataset's sequences (--lengths)"
    return None


def unpaddable(task: str) -> str | None:
    """Return why the rows of a model for this task are neither padded nor packed by a length histogram, or None."""
    if task == "causal-lm":
        return None
    if task == "custom":
        return "a model of your own makes its own batches, which pad or pack as they do; leave it out"
    return f"a length histogram is for causal language models, and this model's task is {task}; leave it out"


def unlaunched(kind: str, nodes: int) -> str | None:
    """Return why probes cannot be launched on so many nodes of devices of a kind (as `--device` names it), or None."""
    if nodes == 1 or kind in {"cpu", "sim"}:
        return None
    return (
        f"--nodes {nodes}: probes on GPUs run on this machine alone. Tune one machine with --nodes 1 and start the "
        "export on each, or price all ranks on a simulated device: --device sim:h100-80gb"
    )


def lacks_nodes(candidate: Candidate, world_size: int, nodes: int) -> str | None:
    """Return why so many ranks in so many nodes leave a candidate's sharding nothing of its own to do, or None."""
    if candidate.sharding != "hsdp":
        return None
    if nodes == 1:
        return (
            "hsdp shards inside a node and replicates across nodes, and there is one (--nodes): that is fsdp2"
        )
    if world_size == nodes:
        return "hsdp shards inside a node, and each of them has one rank (--gpus): replicated across nodes, that is ddp"
    return None


def lacks_groups(candidate: Candidate, world_size: int, nodes: int) -> str | None:
    """Return why so many ranks in so many nodes do not make up the groups that share a model, or None."""
    cut = candidate.tensor_parallel
    each = world_size // nodes
    if cut == 1:
        return None
    if each % cut:
        where = "there are" if nodes == 1 else "each node has"
        return f"{cut}-way tensor parallelism needs {cut} ranks of one node, or a multiple, and {where} {each} (--gpus)"
    groups = world_size // cut
    if candidate.sharding == "none" and groups > 1:
        return f"{groups} groups of {cut} ranks need a sharding among them: zero2 or fsdp2"
    if candidate.sharding != "none" and groups == 1:
        return f"{candidate.sharding} shares the work out over several models; {world_size} ranks make up one (--gpus)"
    return None


def misplaced(candidate: Candidate, world_size: int, kind: Kind, nodes: int = 1) -> str | None:
    """Return why `world_size` ranks, as many in each of `nodes` machines, cannot run a candidate, or None.

    The candidate is legal elsewhere; `kind` is that of their devices.
    """
    if kind == "cpu" and candidate.offload_to == "host" and candidate.engine == "torch":
        return (
            "the cpu device's own memory is the host's, so what leaves it goes to disk: leave out offload_to"
        )
    if candidate.tensor_parallel > 1:
        return lacks_groups(candidate, world_size, nodes)
    if candidate.sharding == "none" and world_size > 1:
        return f"{world_size} ranks need a sharding: ddp, zero1, zero2, hsdp or fsdp2 (or DeepSpeed's zero3)"
    if candidate.sharding != "none" and world_size == 1:
        return f"{candidate.sharding} shares the work out over several ranks, and there is one (--gpus)"
    if candidate.kernels == "liger" and kind == "cpu":
        return "liger-kernel's kernels are written for Triton, which compiles them for GPUs alone"
    if candidate.precision == "fp8" and kind == "cpu":
        return (
            "fp8 is for GPUs that multiply 8-bit floats (NVIDIA's from compute capability 8.9 on, MI300X); a processor "
            "only emulates them"
        )
    return lacks_nodes(candidate, world_size, nodes)


def uncut(candidate: Candidate, facts: ModelFacts) -> str | None:
    """Return why the candidate's tensor parallelism cannot cut this model, or None."""
    cut = candidate.tensor_parallel
    if cut == 1:
        return None
    return facts.uncut or indivisible(facts.divided, cut)


def indivisible(numbers: Mapping[str, int], ranks: int) -> str | None:
    """Return which numbers of a model so many ranks do not divide, or None."""
    left = [f"{name} ({number})" for name, number in numbers.items() if number % ranks]
    return f"{ranks} ranks of tensor parallelism do not divide {', '.join(left)}" if left else None
