"""Activation checkpointing: what blocks keep from forward to backward."""

from __future__ import annotations

from autotune.candidate import Candidate, Checkpointing
from autotune.techniques.axis import Axis, Rule, Value

CHOOSING: tuple[Checkpointing, ...] = ("selective", "alternate")
"""Ways that choose among the operators inside a block, whose results they keep."""


def _title(candidate: Candidate) -> str:
    own = CHECKPOINTING.values[candidate.checkpointing].title
    elsewhere = candidate.checkpointing == "offloaded" and candidate.offload_to != "auto"
    return f"{own} to {candidate.offload_to}" if elsewhere else own


CHECKPOINTING = Axis(
    "checkpointing",
    "what blocks keep from forward to backward; the rest is computed again",
    {
        "none": Value(),
        "selective": Value(
            title="selective checkpointing",
            saves="Activations that are cheap to recompute: norms, activation functions, dropout masks.",
            costs="Recomputing these in backward; no matrix product and no attention is run twice.",
            avoid="what it keeps does not fit either: then use `full`.",
        ),
        "alternate": Value(
            title="alternate checkpointing",
            saves="What `selective` saves, and the results of every second linear layer.",
            costs=(
                "What `selective` costs, and these linear layers once more: about half of what `full` "
                "recomputes."
            ),
            avoid="`selective` fits.",
        ),
        "every-4": Value(
            title="every-4 checkpointing",
            saves="A quarter of what `full` saves.",
            costs="A quarter of what `full` costs.",
            avoid="`selective` saves more for what it costs, which depends on the model: compare both.",
        ),
        "every-2": Value(
            title="every-2 checkpointing",
            saves="Half of what `full` saves.",
            costs="Half of what `full` costs.",
            avoid="`selective` saves more for what it costs, which depends on the model: compare both.",
        ),
        "full": Value(
            title="checkpointing",
            saves="All activations but each block's input.",
            costs="A second forward pass: a third more arithmetic.",
            avoid=(
                "memory runs out in the optimizer step or while the model is built. No activation is alive "
                "there."
            ),
        ),
        "offloaded": Value(
            title="offloaded checkpointing",
            saves=(
                "What `full` saves, and the blocks' inputs too: they are kept in host memory, on the cpu device "
                "in files."
            ),
            costs=(
                "What `full` costs. Each block's input also crosses the host link (or goes to the disk) and "
                "comes back."
            ),
            avoid="`full` fits, or activation offload moves the blocks' inputs anyway.",
            rules=(
                Rule(
                    {"activation_offload": [True]},
                    "activation offload moves the blocks' inputs too: with it, full checkpointing is the same",
                ),
            ),
        ),
    },
    title=_title,
    not_exported=("it is autotune's own choice of what to keep; transformers checkpoints every layer whole"),
)
