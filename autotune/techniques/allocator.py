"""Options of the CUDA caching allocator (PYTORCH_ALLOC_CONF)."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

EXPANDABLE_SEGMENTS = Axis(
    "expandable_segments",
    {
        False: Value(title="fixed segments"),
        True: Value(
            saves="what fixed segments lose to fragmentation",
            costs="nothing",
            avoid="a GPU whose driver cannot map memory piecewise",
        ),
    },
)

SPLIT_LIMIT = Axis(
    "split_limit",
    {
        "none": Value(),
        "64MiB": Value(
            title="no splits from 64MiB",
            saves="fragments of large blocks, with fixed segments",
            costs="large blocks that wait for a request of their size. Simulated, as torch's source has it",
            avoid="with expandable segments: refused, since it does nothing there",
        ),
        "256MiB": Value(
            title="no splits from 256MiB",
            saves="fragments of large blocks, with fixed segments",
            costs="large blocks that wait for a request of their size. Simulated, as torch's source has it",
            avoid="with expandable segments: refused, since it does nothing there",
        ),
    },
    rules=(
        Rule(
            {"expandable_segments": False},
            (
                "expandable segments grow at their end and are split at any size, so a split limit changes "
                "nothing"
            ),
        ),
    ),
)

COLLECT_ABOVE = Axis(
    "collect_above",
    {
        "none": Value(),
        "60%": Value(
            title="collection above 60%",
            saves="cached blocks that were long unused, before the allocator has to flush all",
            costs=(
                "some allocations again. Not predicted: which blocks go depends on their age. torch "
                "collects only where the process's share of the memory is set, so "
                "`worker/build/composition.py` sets it to all"
            ),
            avoid="as above",
        ),
        "80%": Value(
            title="collection above 80%",
            saves="cached blocks that were long unused, before the allocator has to flush all",
            costs=(
                "some allocations again. Not predicted: which blocks go depends on their age. torch "
                "collects only where the process's share of the memory is set, so "
                "`worker/build/composition.py` sets it to all"
            ),
            avoid="as above",
        ),
    },
    rules=(
        Rule(
            {"expandable_segments": False},
            "the allocator's garbage collection leaves expandable segments alone",
        ),
    ),
    not_exported="torch collects only where the process's share of the memory is set, which this library does not do",
)
