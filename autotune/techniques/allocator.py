"""Options of the CUDA caching allocator (PYTORCH_ALLOC_CONF)."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

EXPANDABLE_SEGMENTS = Axis(
    "expandable_segments",
    "CUDA's caching allocator maps memory into growing segments",
    {
        False: Value(title="fixed segments"),
        True: Value(
            saves="What fixed segments lose to fragmentation.",
            costs="Nothing that is known.",
            avoid="the GPU's driver cannot map memory piece by piece.",
        ),
    },
)


def _no_splits(size: str) -> Value:
    return Value(
        title=f"no splits from {size}",
        saves="Fragments of large blocks, with fixed segments.",
        costs=(
            "Large cached blocks wait for a request of their size. It is simulated as torch's source has "
            "it, and was never measured."
        ),
        avoid="segments are expandable.",
    )


def _collected(share: str) -> Value:
    return Value(
        title=f"collection above {share}",
        saves="Cached blocks that were long unused, before the allocator has to free all of them.",
        costs=(
            "Some allocations again. It is not predicted, because which blocks go depends on their age. "
            "torch collects only where the process's share of the memory is set, so the worker sets it to "
            "all."
        ),
        avoid="segments are expandable.",
    )


MAX_SPLIT_SIZE = Axis(
    "max_split_size",
    "CUDA's caching allocator cuts no block of this size or more",
    {
        "none": Value(),
        "64MiB": _no_splits("64MiB"),
        "256MiB": _no_splits("256MiB"),
    },
    rules=(
        Rule(
            {"expandable_segments": [True]},
            (
                "expandable segments grow at their end and are split at any size, so a split limit changes "
                "nothing"
            ),
        ),
    ),
)

GARBAGE_COLLECTION_THRESHOLD = Axis(
    "garbage_collection_threshold",
    "share of a GPU's memory above which the allocator gives back unused blocks",
    {
        "none": Value(),
        "60%": _collected("60%"),
        "80%": _collected("80%"),
    },
    rules=(
        Rule(
            {"expandable_segments": [True]},
            "the allocator's garbage collection leaves expandable segments alone",
        ),
    ),
    not_exported="torch collects only where the process's share of the memory is set, which this library does not do",
)
