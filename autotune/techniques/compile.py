"""torch.compile for the repeated block, and what a compiled block may keep."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value, all_but, listed
from autotune.techniques.blocks import needs_block
from autotune.techniques.checkpointing import CHOOSING

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
                "A start of a minute or so for each model and shape. A trace predicts its memory from the program "
                "that the compiler makes; on the cpu device 62 MiB come on top for the compiler itself."
            ),
            avoid="runs are short.",
            needs_compiler=True,
            rules=(
                Rule(
                    {"sharding": ["zero3"]},
                    "zero3's hooks are on the layers inside a block, and the compiler stops at each of them",
                ),
                Rule(
                    {"checkpointing": CHOOSING},
                    f"{listed(CHOOSING)} checkpointing choose among operators, of which a compiled block shows none",
                ),
                Rule(
                    {"tensor_parallel": all_but("tensor_parallel", 1)},
                    "with slices of matrices each block is compiled by itself, and torch stops at the eighth",
                ),
            ),
        ),
    },
    checks=(needs_block("compile", "compile"),),
    not_exported="each block was compiled by itself; this library compiles the whole model",
)

ACTIVATION_MEMORY_BUDGET = Axis(
    "activation_memory_budget",
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
            {"compile": ["none"]},
            "the memory budget is the compiler's choice of what to keep; without it nothing chooses",
        ),
        Rule(
            {"checkpointing": all_but("checkpointing", "none")},
            (
                "a checkpoint around a compiled block keeps nothing of it, so a budget has nothing to choose from; and "
                "what blocks with a budget take beside checkpointed ones, a trace does not tell (it was 4% low)"
            ),
        ),
    ),
    ordered=False,
    not_exported="the budget is for blocks that were compiled each by itself",
)
