"""torch.compile for the repeated block, and what a compiled block may keep."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

COMPILE = Axis(
    "compile",
    {
        "none": Value(),
        "regional": Value(
            title="compiled blocks",
            saves="what fused operators need not keep: measure",
            costs=(
                "a start of a minute or so for each model and shape. On the cpu device a trace prices it:"
                " the compiler makes its program for tensors without data, and no kernel; the compiler's "
                "own memory counts there too, and is predicted as 62 MiB. For a GPU no trace prices it, "
                "so it is probed and never passed over by prediction"
            ),
            avoid="short runs; with selective checkpointing, LoRA, full offload or several ranks: refused",
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
    {
        "none": Value(),
        **{
            share: Value(
                title=f"{share} of activations",
                saves=(
                    "what a compiled block keeps for backward, as near as the compiler comes: it makes the "
                    "rest again. Tried by hand only ([log.md](log.md))"
                ),
                costs=(
                    "the arithmetic of what is made again; the compiler chooses it by FLOPs. A smaller budget"
                    " may take more memory, or less time, than a larger one: so none is passed over by what "
                    "another came to (`--space compiled` tries each from the smallest micro-batch on, and a "
                    "graph that does otherwise is refused)"
                ),
                avoid=(
                    "blocks that are not compiled, or checkpointed too: refused. Dropout inside blocks: "
                    "refused, because torch's compiler draws other masks when it makes results again, and "
                    "gradients are wrong"
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
