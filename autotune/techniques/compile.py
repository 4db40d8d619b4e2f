"""torch.compile for the repeated block, and what a compiled block may keep."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

COMPILE = Axis(
    "compile",
    "compilation of the repeated block, by torch.compile",
    {
        "none": Value(short="off"),
        "regional": Value(
            title="compiled blocks",
            short="on",
            saves="Time, and what fused operators need not keep. How much depends on the model.",
            costs=(
                "A start of a minute or so for each model and shape. On the cpu device a trace predicts its "
                "memory, with 62 MiB for the compiler itself. For a GPU no trace predicts it: it is probed, and "
                "never skipped by prediction."
            ),
            avoid="runs are short.",
            needs_compiler=True,
            rules=(
                Rule(
                    {"sharding": "none", "offload": ["none", "optimizer", "gradients"]},
                    (
                        "shards of a block come and go around its forward pass, whose compiled code expects "
                        "whole parameters"
                    ),
                ),
                Rule(
                    {"checkpointing": ["none", "every-4", "every-2", "full"]},
                    ("selective checkpointing chooses among operators, of which a compiled block shows none"),
                ),
                Rule(
                    {"adapters": "none"},
                    "with adapters each block is compiled by itself, and torch stops at the eighth",
                ),
            ),
        ),
    },
    not_exported="each block was compiled by itself; this library compiles the whole model",
)

MEMORY_BUDGET = Axis(
    "memory_budget",
    "share of its activations that a compiled block may keep",
    {
        "none": Value(),
        **{
            share: Value(
                title=f"{share} of activations",
                saves=(
                    "Activations that a compiled block keeps for backward, about as many as the budget says. "
                    "The compiler recomputes the rest."
                ),
                costs=(
                    "The recomputation, which the compiler chooses by FLOPs. A smaller budget may take more "
                    "memory, or less time, than a larger one. So each value is tried for itself (`--space "
                    "compiled`), and a graph that infers one from another is refused."
                ),
                avoid=(
                    "blocks have dropout: refused, because torch's compiler draws other masks when it "
                    "recomputes, and gradients are wrong."
                ),
            )
            for share in ("75%", "50%", "25%")
        },
    },
    rules=(
        Rule(
            {"compile": "regional"},
            "the memory budget is the compiler's choice of what to keep; without it nothing chooses",
        ),
        Rule(
            {"checkpointing": "none"},
            (
                "a checkpoint around a compiled block keeps nothing of it, so a budget for what it keeps changes "
                "nothing"
            ),
        ),
    ),
    ordered=False,
    not_exported="the budget is for blocks that were compiled each by itself",
)
