"""Whose operators a block runs."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.errors import nearest
from autotune.techniques.axis import Axis, Context, Rule, Value, listed
from autotune.techniques.checkpointing import CHOOSING


def _unpatched(candidate: Candidate, context: Context) -> str | None:
    """Return why liger-kernel has no kernels for this model, or None where it has, or where it cannot be told."""
    source, machine = context.source, context.machine
    if candidate.kernels != "liger" or source is None or machine is None:
        return None
    if source.source == "function":
        return "liger-kernel patches models of transformers, and this one is a function of your own"
    kind, known = (source.config or {}).get("model_type"), machine.liger_models
    if known is None or kind in known:
        return None
    version = machine.packages.get("liger-kernel")
    return f"liger-kernel {version} has no kernels for a {kind}; {nearest(str(kind), known)}"


KERNELS = Axis(
    "kernels",
    "whose operators blocks run",
    {
        "torch": Value(),
        "liger": Value(
            title="liger kernels",
            saves=(
                "Intermediates that fused RMSNorm, rotary embedding and SwiGLU need not keep, and the logits, "
                "which liger-kernel's linear cross-entropy never makes whole."
            ),
            costs=(
                "Nothing that is known; operators sum in another order. A trace predicts it without a GPU where "
                "liger-kernel is installed. Mixtures of experts are probed, because their kernels read sizes "
                "from the device."
            ),
            avoid=(
                "liger-kernel has no kernels for the type of model. It is refused before launch then, with the "
                "nearest type that it has."
            ),
            packages=("liger-kernel",),
            needs_compiler=True,
            gpu_only="liger-kernel's kernels are written for Triton, which compiles them for GPUs alone",
            rules=(
                Rule(
                    {"loss": ["chunked"]},
                    (
                        "liger-kernel's linear cross-entropy makes no logits whole either; chunked loss would"
                        " take its place"
                    ),
                ),
                Rule(
                    {"compile": ["regional"]},
                    (
                        "liger-kernel fuses by hand what the compiler would fuse, which sees calls of ready "
                        "kernels alone"
                    ),
                ),
                Rule(
                    {"checkpointing": CHOOSING},
                    (
                        "liger-kernel rotates queries and keys in the memory that linear layers gave them, "
                        f"which {listed(CHOOSING)} checkpointing keep: a block would rotate them twice"
                    ),
                ),
                Rule(
                    {"precision": ["fp16"]},
                    (
                        "liger-kernel's loss makes its gradients with the loss, before the scale that keeps "
                        "fp16's from vanishing"
                    ),
                ),
                Rule(
                    {"sharding": ["zero3"]},
                    (
                        "liger-kernel's loss multiplies by the head's weight itself, which zero3 gathers only while "
                        "the head's module is called"
                    ),
                ),
            ),
        ),
    },
    checks=(_unpatched,),
)
