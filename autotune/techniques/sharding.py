"""How the ranks of a run share the work: shardings with their traits, their engine, tensor parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.candidate import Candidate, Sharding
from autotune.techniques.axis import Axis, Context, Rule, TrainingChange, Value, all_but, listed


@dataclass(frozen=True)
class Traits:
    """What the ranks of a sharding share out (ZeRO, Rajbhandari et al. 2020, figure 1), and who offers it."""

    weights: bool
    gradients: bool
    optimizer_state: bool
    """With its fp32 masters, where it has any."""
    within_node: bool = False
    """Shared out inside each node, and replicated across nodes."""
    engines: tuple[str, ...] = ("torch",)
    stage: int | None = None
    """ZeRO's, in DeepSpeed's configuration."""


SHARDINGS: dict[str, Traits] = {
    "none": Traits(False, False, False),
    "ddp": Traits(False, False, False),
    "zero1": Traits(False, False, True, engines=("torch", "deepspeed"), stage=1),
    "zero2": Traits(False, True, True, engines=("torch", "deepspeed"), stage=2),
    "hsdp": Traits(True, True, True, within_node=True),
    "fsdp2": Traits(True, True, True),
    "zero3": Traits(True, True, True, engines=("deepspeed",), stage=3),
}
"""Every way to share the work out over ranks that take samples of their own."""

OVER_RANKS = all_but("sharding", "none")
"""Every way to train on several ranks that take samples of their own."""
IN_GRADIENT_SHARDS = tuple(name for name, traits in SHARDINGS.items() if traits.gradients)
"""Shardings under which no rank has a whole gradient to look at."""
WITH_WHOLE_WEIGHTS = tuple(name for name in OVER_RANKS if not SHARDINGS[name].weights)
"""Shardings under which every rank computes with weights that stay on its device."""
REPLICATED = tuple(name for name, traits in SHARDINGS.items() if name != "none" and not traits.gradients)
"""Shardings under which every rank keeps weights and gradients whole."""
IN_SHARDS = tuple(
    name for name, traits in SHARDINGS.items() if traits.gradients and "torch" in traits.engines
)
"""Shardings that FSDP2 does: weights or gradients come in shards."""


def usual_sharding(ranks: int, tensor_parallel: int = 1) -> Sharding:
    """Return how ranks share the work unless somebody chose: as copies, or as shards where several share each model."""
    if ranks == tensor_parallel:
        return "none"
    return "ddp" if tensor_parallel == 1 else "fsdp2"


def lacks_nodes(candidate: Candidate, context: Context) -> str | None:
    """Return why so many ranks in so many nodes leave a candidate's sharding nothing of its own to do, or None."""
    if candidate.sharding != "hsdp" or candidate.tensor_parallel > 1 or context.world_size in {None, 1}:
        return None
    if context.nodes == 1:
        return (
            "hsdp shards inside a node and replicates across nodes, and there is one (--nodes): that is fsdp2"
        )
    if context.world_size == context.nodes:
        return "hsdp shards inside a node, and each of them has one rank (--gpus): replicated across nodes, that is ddp"
    return None


def lacks_groups(candidate: Candidate, context: Context) -> str | None:
    """Return why so many ranks in so many nodes do not make up the groups that share a model, or None."""
    cut, ranks, nodes = candidate.tensor_parallel, context.world_size, context.nodes
    if cut == 1 or ranks is None:
        return None
    each = ranks // nodes
    if each % cut:
        where = "there are" if nodes == 1 else "each node has"
        return f"{cut}-way tensor parallelism needs {cut} ranks of one node, or a multiple, and {where} {each} (--gpus)"
    groups = ranks // cut
    if candidate.sharding == "none" and groups > 1:
        return f"{groups} groups of {cut} ranks need a sharding among them: zero2 or fsdp2"
    if candidate.sharding != "none" and groups == 1:
        return f"{candidate.sharding} shares the work out over several models; {ranks} ranks make up one (--gpus)"
    return None


def _ranks(candidate: Candidate, context: Context) -> str | None:
    ranks = context.world_size
    if ranks is None or candidate.tensor_parallel > 1:
        return None
    if candidate.sharding == "none" and ranks > 1:
        offered = ", ".join(
            name for name, traits in SHARDINGS.items() if name != "none" and "torch" in traits.engines
        )
        return f"{ranks} ranks need a sharding: {offered} (or DeepSpeed's zero3)"
    if candidate.sharding != "none" and ranks == 1:
        return f"{candidate.sharding} shares the work out over several ranks, and there is one (--gpus)"
    return None


def out_of_step(candidate: Candidate) -> str | None:
    """Return why ranks cannot share a model so whose layers each of them skips by chance (LayerDrop), or None."""
    if candidate.engine == "torch" and candidate.sharding in {"none", *REPLICATED}:
        return None
    return (
        "each rank skips other layers of this model in training (a layerdrop above 0 in its configuration), and ranks "
        "that gather weights or reduce gradients layer by layer would wait for each other for ever: set it to 0, or "
        "take torch's ddp or zero1"
    )


def _skipping(candidate: Candidate, context: Context) -> str | None:
    return out_of_step(candidate) if context.model is not None and context.model.skips_layers else None


def _uncut(candidate: Candidate, context: Context) -> str | None:
    cut, model = candidate.tensor_parallel, context.model
    if cut == 1 or model is None:
        return None
    return model.uncut or indivisible(model.divided, cut)


def indivisible(numbers: Mapping[str, int], ranks: int) -> str | None:
    """Return which numbers of a model so many ranks do not divide, or None."""
    left = [f"{name} ({number})" for name, number in numbers.items() if number % ranks]
    return f"{ranks} ranks of tensor parallelism do not divide {', '.join(left)}" if left else None


def _sharding(candidate: Candidate) -> str:
    if candidate.sharding == "none":
        return ""
    return candidate.sharding if candidate.engine == "torch" else f"DeepSpeed {candidate.sharding}"


SHARDING = Axis(
    "sharding",
    "how ranks share the work, with --gpus",
    {
        "none": Value(),
        "ddp": Value(
            saves="Nothing. Every rank keeps everything; the batch is what the ranks share.",
            costs="One all-reduce of the gradients in an optimizer step.",
            avoid="it does not fit on one device.",
        ),
        "zero1": Value(
            saves="Optimizer state: each of N ranks keeps one Nth.",
            costs="What `ddp` costs, and a broadcast of the updated parameters.",
            avoid="`ddp` fits.",
        ),
        "zero2": Value(
            saves=(
                "Optimizer state and gradients: each of N ranks keeps one Nth. Parameters are in shards between "
                "steps, and gathered once for forward and backward."
            ),
            costs="In every micro-step a reduction of the gradients and one gathering of the parameters.",
            avoid=(
                "`zero1` fits. At the peak a rank holds whole parameters and its shards beside them, which over "
                "two ranks is as much as sharded gradients save."
            ),
        ),
        "hsdp": Value(
            saves="What `fsdp2` saves over the ranks of one node. Each node keeps a copy.",
            costs=(
                "What `fsdp2` costs inside the node, and one all-reduce of a shard's gradients across nodes in "
                "an optimizer step. Not measured across real machines."
            ),
            avoid="there is one node, or one rank a node: refused, because that is `fsdp2` or `ddp`.",
        ),
        "fsdp2": Value(
            saves=(
                "Parameters, gradients and optimizer state: each of N ranks keeps one Nth, and one block's "
                "parameters are whole at a time."
            ),
            costs=(
                "Gathering each block's parameters in forward and backward, and a reduction of the gradients, "
                "in every micro-step."
            ),
            avoid="`zero2` fits, or links are slow.",
        ),
        "zero3": Value(
            saves="The same as `fsdp2`, in DeepSpeed.",
            costs="The same as `fsdp2`.",
            avoid="you have no reason to leave torch's `fsdp2`.",
            rules=(Rule({"engine": ["torch"]}, "zero3 is DeepSpeed's; torch's is fsdp2"),),
        ),
    },
    title=_sharding,
    checks=(_ranks, lacks_nodes, _skipping),
    not_exported=(
        "it was measured as autotune's own training applies it; what this library sets up under the name keeps other "
        "buffers, so the memory that was proven would not hold"
    ),
)

ENGINE = Axis(
    "engine",
    "what shards",
    {
        "torch": Value(),
        "deepspeed": Value(
            saves=(
                "What torch's sharding of the same stage saves, less a copy of the shard in fp32. In bf16 "
                "parameters and gradients take half."
            ),
            costs=(
                "With offload also gradients and copies on the host: 18 bytes a parameter in bf16, 20 with full "
                "offload (`zero3`). Buffers have the square of the model's width, as the Trainer's `auto` sets "
                "them; DeepSpeed's own 500 million numbers would fill a small device."
            ),
            avoid="you have no reason to leave torch's shardings.",
            changes_training=TrainingChange(
                "gradients", "in bf16 DeepSpeed adds up and reduces gradients in bf16 too"
            ),
            packages=("deepspeed",),
            rules=(
                Rule(
                    {
                        "sharding": tuple(
                            n for n, traits in SHARDINGS.items() if "deepspeed" not in traits.engines
                        )
                    },
                    "DeepSpeed's engine is offered for ZeRO; one device, ddp, hsdp and fsdp2 are torch's",
                ),
                Rule(
                    {"precision": ["fp16"]},
                    "DeepSpeed scales fp16's loss by rules of its own, which are not those that other shardings have",
                ),
                Rule(
                    {"precision": ["bf16-pure"]},
                    "DeepSpeed keeps masters in fp32 beside parameters in bf16, and bf16-pure has none",
                ),
                Rule(
                    {"precision": ["fp8"]},
                    "8-bit products take what autocast has in bf16, and DeepSpeed casts the parameters instead",
                ),
                Rule(
                    {"optimizer": ["adamw-8bit", "adafactor"]},
                    (
                        "DeepSpeed flattens parameters, so an optimizer that looks at their shapes is another"
                        " one there"
                    ),
                ),
                Rule(
                    {"offload_to": ["disk"]},
                    (
                        "DeepSpeed reaches a disk through an extension that has to be compiled against "
                        "libaio, and nothing of DeepSpeed is compiled here; offload to disk with torch's "
                        "shardings"
                    ),
                    where={"offload": all_but("offload", "none")},
                ),
            ),
        ),
    },
    not_exported="this library would have to hand its loop to DeepSpeed",
)

REDUCE_DTYPE = Axis(
    "reduce_dtype",
    "number type in which ranks add up gradients",
    {
        "fp32": Value(),
        "bf16": Value(
            title="bf16 reduction",
            saves="Half the bytes of a gradient reduction on the links, and under FSDP2 half of its buffers.",
            costs=(
                "Each rank's gradients and each partial sum are rounded to 8 significant bits. Under `hsdp` "
                "nodes are reduced over in every micro-step, because sums of many micro-steps in bf16 would "
                "lose small ones. Under `ddp` a copy of a bucket. Not measured on real links."
            ),
            avoid="the links keep up, as within a node.",
            changes_training=TrainingChange(
                "gradients", "ranks round their gradients, and sums of them, to bf16"
            ),
            dtypes=("bf16",),
            rules=(
                Rule(
                    {"sharding": ["none"]},
                    "reduce_dtype is for gradients that ranks add up; one device adds none",
                ),
                Rule(
                    {"engine": ["deepspeed"]},
                    (
                        "DeepSpeed reduces gradients in the type that it keeps them in, which its precision "
                        "says"
                    ),
                ),
            ),
        ),
    },
    not_exported="this library reduces gradients in the type that they have, which is fp32",
    beside_passes=True,
)

TENSOR_PARALLEL = Axis(
    "tensor_parallel",
    "ranks, of --gpus, that share each model's matrices",
    {
        1: Value(),
        **{
            ranks: Value(
                title=f"{ranks}-way tensor parallel",
                saves=(
                    "All but one part in 2, 4 or 8 of parameters, gradients and optimizer state, and of the "
                    "activations between the two matrices of a pair."
                ),
                costs=(
                    "Two all-reduces for each block in forward and two in backward, each as large as the "
                    "residual stream, which nothing overlaps. The ranks take the same samples, so fewer are "
                    "trained at a time. Each rank gathers the logits whole."
                ),
                avoid=(
                    "links are slow. A model without a plan that torch can follow (GPT-2, mixtures of experts) "
                    "is refused, and so are heads, widths and vocabularies that the ranks do not divide."
                ),
            )
            for ranks in (2, 4, 8)
        },
    },
    rules=(
        Rule(
            {"sharding": [*REPLICATED, "zero3"], "engine": ["deepspeed"]},
            (
                "matrices that are cut are distributed tensors, which only FSDP2 (zero2, fsdp2) shards once more;"
                f" {listed(REPLICATED)} and DeepSpeed keep flat buffers of plain ones"
            ),
        ),
        Rule(
            {"sharding": ["hsdp"]},
            "ranks that share a model, shards and copies of them would be a mesh of three dimensions: not offered",
        ),
        Rule(
            {"offload": ["gradients", "full"], "activation_offload": [True]},
            (
                "what is kept elsewhere is kept by its memory, of which a distributed tensor has none of its own;"
                " the optimizer's state is kept for the slices"
            ),
        ),
        Rule(
            {"optimizer": ["adafactor"]},
            "Adafactor sums over rows and columns of whole parameters, of which each rank keeps a slice",
        ),
        Rule(
            {"optimizer_in_backward": [True]},
            "a slice is updated as a plain tensor, when all gradients are there",
        ),
        Rule(
            {"precision": ["fp16"]},
            "fp16's gradient scaler looks for overflows on each rank alone, and the ranks of one model must agree",
        ),
        Rule(
            {"adapters": all_but("adapters", "none"), "loss": ["chunked"], "kernels": ["liger"]},
            (
                "adapters, chunked loss and liger-kernel's multiply by the matrices themselves, which here are "
                "slices"
            ),
        ),
    ),
    checks=(lacks_groups, _uncut),
    not_exported=(
        "transformers cuts a model while it loads published weights (`from_pretrained`), and the exported script "
        "builds it from its configuration, without any"
    ),
)
