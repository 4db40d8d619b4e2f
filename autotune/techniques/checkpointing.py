"""Activation checkpointing: what blocks keep from forward to backward."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

CHECKPOINTING = Axis(
    "checkpointing",
    {
        "none": Value(),
        "selective": Value(
            title="selective checkpointing",
            saves="what is cheap to make again: norms, activation functions, dropout masks",
            costs="these, once more; no matrix product and no attention",
            avoid="the rest does not fit either: then `full`",
        ),
        "alternate": Value(
            title="alternate checkpointing",
            saves="what `selective` does, and every second matrix product",
            costs="these products, once more: about half of what `full` computes again",
            avoid="`selective` fits; compiled blocks and liger-kernel: refused",
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
            saves="a quarter of what `full` does",
            costs="a quarter of its cost",
            avoid="`selective` fits: it is cheaper for what it saves",
        ),
        "every-2": Value(
            title="every-2 checkpointing",
            saves="half of what `full` does",
            costs="half of its cost",
            avoid="`selective` fits: it is cheaper for what it saves",
        ),
        "full": Value(
            title="checkpointing",
            saves="all but each block's input",
            costs="a second forward pass, a third more arithmetic",
            avoid="the optimizer step or the build is what does not fit",
        ),
        "offloaded": Value(
            title="offloaded checkpointing",
            saves="as `full`, and the blocks' inputs, which rest where offload goes",
            costs="as `full`; each block's input crosses the host link (or goes to the disk) and comes back",
            avoid="`full` fits; compiled blocks: refused",
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
