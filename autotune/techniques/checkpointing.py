"""Activation checkpointing: what blocks keep from forward to backward."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

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
            rules=(
                Rule(
                    {"compile": "none"},
                    "alternate checkpointing chooses among operators, of which a compiled block shows none",
                ),
                Rule(
                    {"kernels": "torch"},
                    "liger-kernel rotates queries and keys in memory that alternate checkpointing keeps: a block "
                    "would rotate them twice",
                ),
            ),
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
            avoid="`full` fits.",
            rules=(
                Rule({"compile": "none"}, "a compiled block keeps what it was given by its own choice"),
                Rule({"activation_offload": False}, "activation offload moves the blocks' inputs too"),
                Rule(
                    {"tensor_parallel": 1},
                    "what is kept elsewhere is kept by its memory, of which a distributed tensor has none of its own",
                ),
                Rule(
                    {"engine": "torch"},
                    "DeepSpeed's hooks are on modules; what a block keeps elsewhere misses them",
                ),
            ),
        ),
    },
    not_exported=("it is autotune's own choice of what to keep; transformers checkpoints every layer whole"),
)
