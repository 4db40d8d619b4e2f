"""Which optimizer, in which implementation, and when it steps."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.techniques.axis import Axis, Context, Rule, TrainingChange, Value, all_but, listed
from autotune.techniques.sharding import IN_GRADIENT_SHARDS, OVER_RANKS


def _accumulates(candidate: Candidate, context: Context) -> str | None:
    if not candidate.optimizer_in_backward or context.accumulation_steps == 1:
        return None
    return (
        f"gradients that {context.accumulation_steps} micro-steps accumulate must all be kept until the last one, so "
        "an optimizer step inside backward frees nothing; it needs a micro-batch that is the whole global batch"
    )


_OTHER = "It is another optimizer, with other learning rates."
_AVOID = "you depend on AdamW's results."


def _instead_of_adamw(other: str) -> TrainingChange:
    return TrainingChange("optimizer", f"{other} takes the place of AdamW, and needs other learning rates")


OPTIMIZER = Axis(
    "optimizer",
    "what updates the parameters",
    {
        "adamw": Value(),
        "adamw-8bit": Value(
            title="adamw-8bit",
            saves="Three quarters of AdamW's state.",
            costs=(
                "Rounding of the moments to 8 bits in blocks of 256 (bitsandbytes). Its CPU kernel takes five "
                "copies of the largest parameter while it steps."
            ),
            avoid="you train on the cpu device and one table is most of the model.",
            changes_training=TrainingChange(
                "optimizer state", "the optimizer's moments are rounded to 8 bits"
            ),
            packages=("bitsandbytes",),
        ),
        "adafactor": Value(
            title="adafactor",
            saves="Nearly all of AdamW's state: sums of rows and columns take its place.",
            costs=f"{_OTHER} Its temporaries take three copies of a parameter.",
            avoid=_AVOID,
            changes_training=_instead_of_adamw("Adafactor"),
            rules=(
                Rule(
                    {"sharding": IN_GRADIENT_SHARDS},
                    (
                        "Adafactor sums over rows and columns of whole parameters, of which "
                        f"{listed(IN_GRADIENT_SHARDS)} update shards"
                    ),
                ),
            ),
        ),
        "momentum": Value(
            title="momentum",
            saves="Half of AdamW's state.",
            costs=_OTHER,
            avoid=_AVOID,
            changes_training=_instead_of_adamw("SGD with momentum"),
        ),
        "sgd": Value(
            title="sgd",
            saves="All of AdamW's state.",
            costs=_OTHER,
            avoid=_AVOID,
            changes_training=_instead_of_adamw("plain SGD"),
        ),
    },
    beside_passes=True,
)

OPTIMIZER_KERNEL = Axis(
    "optimizer_kernel",
    "how torch's own optimizers update",
    {
        "fused": Value(),
        "foreach": Value(
            title="foreach update",
            saves="Nothing. It is what torch takes on a GPU where nobody asks for `fused`.",
            costs=(
                "With AdamW temporaries as large as all parameters; with momentum and SGD none. Its speed on a "
                "GPU was not measured."
            ),
            avoid="torch has a fused kernel for the device.",
            rules=(
                Rule(
                    {"optimizer": ["adamw-8bit", "adafactor"]},
                    (
                        "torch's own optimizers have a fused and a foreach implementation; Adafactor and "
                        "8-bit AdamW have one"
                    ),
                ),
            ),
        ),
    },
    beside_passes=True,
)

OPTIMIZER_IN_BACKWARD = Axis(
    "optimizer_in_backward",
    "update each parameter as soon as its gradient is there",
    {
        False: Value(),
        True: Value(
            title="step in backward",
            saves="All gradients but one parameter's, where the peak is at a time when they exist.",
            costs="No clipping by the global norm.",
            avoid=(
                "gradients accumulate over several micro-steps: refused, because they must all be kept then."
            ),
            rules=(
                Rule(
                    {"offload": all_but("offload", "none")},
                    (
                        "offload keeps optimizer state or gradients elsewhere and updates them after the "
                        "backward pass, so no step can be taken inside it"
                    ),
                ),
                Rule(
                    {"sharding": OVER_RANKS},
                    (
                        "over several ranks a gradient is whole only after it was reduced, so no step can be "
                        "taken before that"
                    ),
                ),
            ),
        ),
    },
    checks=(_accumulates,),
    not_exported=(
        "this library clips gradients and steps after the backward pass, when all gradients are there: the memory that "
        "was proven would not hold"
    ),
    beside_passes=True,
)
