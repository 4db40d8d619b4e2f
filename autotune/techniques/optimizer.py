"""Which optimizer, in which implementation, and when it steps."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.techniques.axis import Axis, Context, Rule, Value


def _accumulates(candidate: Candidate, context: Context) -> str | None:
    if not candidate.optimizer_in_backward or context.accumulation_steps == 1:
        return None
    return (
        f"gradients that {context.accumulation_steps} micro-steps accumulate must all be kept until the last one, so "
        "an optimizer step inside backward frees nothing; it needs a micro-batch that is the whole global batch"
    )


OPTIMIZER = Axis(
    "optimizer",
    {
        "adamw": Value(),
        "adamw-8bit": Value(
            title="adamw-8bit",
            saves="three quarters of AdamW's state",
            costs=(
                "rounding of the moments to 8 bits in blocks of 256 (bitsandbytes; why not torchao: "
                "[log.md](log.md)). Its CPU kernel takes five copies of the largest parameter while it "
                "steps"
            ),
            avoid="on the cpu device, where one table is most of the model",
            packages=("bitsandbytes",),
        ),
        "adafactor": Value(
            title="adafactor",
            saves="nearly all of it",
            costs=(
                "another optimizer: its learning rates do not carry over; temporaries of three copies of "
                "a parameter"
            ),
            avoid="you depend on AdamW's results",
            rules=(
                Rule(
                    {"sharding": ["none", "ddp", "zero1"]},
                    (
                        "Adafactor sums over rows and columns of whole parameters, of which zero2, hsdp and "
                        "fsdp2 keep shards"
                    ),
                ),
            ),
        ),
        "momentum": Value(
            title="momentum",
            saves="half, all",
            costs="another optimizer",
            avoid="as above",
        ),
        "sgd": Value(
            title="sgd",
            saves="half, all",
            costs="another optimizer",
            avoid="as above",
        ),
    },
)

OPTIMIZER_KERNEL = Axis(
    "optimizer_kernel",
    {
        "fused": Value(),
        "foreach": Value(
            title="foreach update",
            saves="nothing: it is what torch takes on a GPU where nobody asks for `fused`",
            costs=(
                "AdamW takes the roots of all second moments at once: as much as the parameters. Momentum"
                " and SGD take nothing. Not measured: its speed on a GPU"
            ),
            avoid="fused runs, which is wherever torch has a kernel for it",
            rules=(
                Rule(
                    {"optimizer": ["adamw", "momentum", "sgd"]},
                    (
                        "torch's own optimizers have a fused and a foreach implementation; Adafactor and "
                        "8-bit AdamW have one"
                    ),
                ),
            ),
        ),
    },
)

OPTIMIZER_IN_BACKWARD = Axis(
    "optimizer_in_backward",
    {
        False: Value(),
        True: Value(
            title="step in backward",
            saves="the gradients, but for one parameter's",
            costs="no clipping by the common norm",
            avoid=(
                "gradients accumulate: refused, since they must be kept then. The peak is before they "
                "exist: measure"
            ),
            rules=(
                Rule(
                    {"offload": "none"},
                    (
                        "offload keeps optimizer state or gradients elsewhere and updates them after the "
                        "backward pass, so no step can be taken inside it"
                    ),
                ),
                Rule(
                    {"sharding": "none"},
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
)
