"""What leaves the device between its uses, and where it goes."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.techniques.axis import Axis, Context, Rule, Value, all_but, listed
from autotune.techniques.sharding import OVER_RANKS, SHARDINGS, WITH_WHOLE_WEIGHTS


def _own_memory(candidate: Candidate, context: Context) -> str | None:
    kind = context.kind or (context.device.kind if context.device else None)
    if kind != "cpu" or candidate.offload_to != "host" or candidate.engine != "torch":
        return None
    return "the cpu device's own memory is the host's, so what leaves it goes to disk: leave out offload_to"


def _where(candidate: Candidate) -> str:
    return "" if candidate.offload_to == "auto" else f" to {candidate.offload_to}"


def _activation_offload(candidate: Candidate) -> str:
    return f"activation offload{_where(candidate)}" if candidate.activation_offload else ""


def _offload(candidate: Candidate) -> str:
    return "" if candidate.offload == "none" else f"{candidate.offload} offload{_where(candidate)}"


ACTIVATION_OFFLOAD = Axis(
    "activation_offload",
    "activations are kept off the device from forward to backward",
    {
        False: Value(),
        True: Value(
            slowdown=1.3,
            saves="Nearly all activations.",
            costs=(
                "Each byte crosses the host link (or goes to the disk) and comes back. On CUDA the copies "
                "overlap with computation."
            ),
            avoid=(
                "the link is slow, or together with `checkpointing: selective`, whose kept results stay on the "
                "device."
            ),
        ),
    },
    title=_activation_offload,
    not_exported="it is autotune's own technique: this library keeps activations on the device",
    beside_passes=True,
)

OFFLOAD = Axis(
    "offload",
    "what leaves the device",
    {
        "none": Value(),
        "optimizer": Value(
            slowdown=1.2,
            saves="The optimizer state.",
            costs=(
                "It crosses the host link once each way in an optimizer step. Many accumulated micro-steps make "
                "that cheap."
            ),
            avoid="micro-steps are few and short.",
            rules=(
                Rule(
                    {"sharding": ["zero1"]},
                    (
                        "torch's zero1 keeps its shard of the state on the device; offload it with zero2, "
                        "hsdp, fsdp2 or ddp, or under DeepSpeed"
                    ),
                    where={"engine": ["torch"]},
                ),
            ),
        ),
        "gradients": Value(
            slowdown=1.3,
            saves="What `optimizer` saves, and gradients: each leaves the device as soon as it is complete.",
            costs=(
                "What `optimizer` costs. Each gradient also crosses the host link down and up, and while "
                "micro-steps accumulate it does so in each of them."
            ),
            avoid="`optimizer` fits.",
            rules=(
                Rule(
                    {"sharding": OVER_RANKS},
                    (
                        "ranks reduce gradients where they are made, so these alone leave one device only; with "
                        "optimizer and parameters they do under fsdp2 (full offload)"
                    ),
                ),
            ),
        ),
        "full": Value(
            slowdown=1.8,
            saves=(
                "What `gradients` saves, and parameters: each block's are on the device only while it computes."
            ),
            costs="Each block's parameters cross the host link in forward and again in backward.",
            avoid="anything else fits.",
            rules=(
                Rule(
                    {"sharding": WITH_WHOLE_WEIGHTS},
                    (
                        "full offload brings parameters to the device block by block, as "
                        f"{listed([name for name, traits in SHARDINGS.items() if traits.weights])} do; "
                        f"{listed(WITH_WHOLE_WEIGHTS)} compute with whole ones, which stay there"
                    ),
                ),
            ),
        ),
    },
    title=_offload,
    not_exported=(
        "it is autotune's own technique; what this library offers under the name moves other tensors at other times, "
        "so neither the memory nor the speed that was proven would hold"
    ),
    beside_passes=True,
)

OFFLOAD_TO = Axis(
    "offload_to",
    "where offloaded tensors are kept",
    {
        "auto": Value(),
        "host": Value(
            saves=(
                "What `offload` and `activation_offload` take off the device. It is what `auto` means for a "
                "GPU."
            ),
            costs="Pinned host memory.",
            avoid="the device is `cpu`, whose memory the host's is: refused.",
        ),
        "disk": Value(
            saves=(
                "Host memory too, but for 64 MiB of pinned buffers. Offloaded tensors are kept in memory-mapped "
                "files. It is what `auto` means for the cpu device."
            ),
            costs=(
                "The disk's bandwidth and wear: optimizer state is written once a step. Not measured on a GPU."
            ),
            avoid="the host has the memory.",
        ),
    },
    rules=(
        Rule(
            {"checkpointing": all_but("checkpointing", "offloaded")},
            "nothing leaves the device, so there is nothing to put on the host or on disk",
            where={"offload": ["none"], "activation_offload": [False]},
        ),
    ),
    checks=(_own_memory,),
    not_exported="it is the place of what autotune's own offload moves, which this library does not",
    beside_passes=True,
)
