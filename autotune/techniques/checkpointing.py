"""Activation checkpointing: what blocks keep from forward to backward."""

from __future__ import annotations

from autotune.candidate import Candidate, Checkpointing
from autotune.techniques.axis import Axis, Context, Rule, Value
from autotune.techniques.blocks import needs_block

CHOOSING: tuple[Checkpointing, ...] = ("selective", "alternate")
"""Ways that choose among the operators inside a block, whose results they keep."""


def _title(candidate: Candidate) -> str:
    own = CHECKPOINTING.values[candidate.checkpointing].title
    if candidate.checkpointing == "offloaded" and candidate.offload_to != "auto":
        own = f"{own} to {candidate.offload_to}"
    if candidate.checkpointed_blocks == "all":
        return own
    return f"{own} of {candidate.checkpointed_blocks} block{'s' * (candidate.checkpointed_blocks > 1)}"


def _fewer_than_all(candidate: Candidate, context: Context) -> str | None:
    blocks = context.model.blocks if context.model else 0
    return more_blocks_than(candidate, blocks) if blocks else None


def more_blocks_than(candidate: Candidate, blocks: int) -> str | None:
    """Return why a model of so many blocks cannot have so many of them checkpointed, or None.

    All of them are `all` and no number, so that one training has one name.
    """
    count = candidate.checkpointed_blocks
    if count == "all" or count < blocks:
        return None
    fewer = f"`all`, or a number below {blocks}" if blocks > 1 else "`all`"
    has = f"the model has {blocks} block{'s' * (blocks > 1)}, and {count} are asked for"
    return f"{has}: checkpointed blocks are {fewer}"


CHECKPOINTING = Axis(
    "checkpointing",
    "what blocks keep from forward to backward; the rest is computed again",
    {
        "none": Value(),
        "selective": Value(
            slowdown=1.05,
            title="selective checkpointing",
            saves="Activations that are cheap to recompute: norms, activation functions, dropout masks.",
            costs="Recomputing these in backward; no matrix product and no attention is run twice.",
            avoid="what it keeps does not fit either: then use `full`.",
        ),
        "alternate": Value(
            slowdown=1.15,
            title="alternate checkpointing",
            saves="What `selective` saves, and the results of every second linear layer.",
            costs=(
                "What `selective` costs, and these linear layers once more: about half of what `full` "
                "recomputes."
            ),
            avoid="`selective` fits.",
        ),
        "full": Value(
            slowdown=1.3,
            title="checkpointing",
            saves="All activations but each block's input.",
            costs="A second forward pass: a third more arithmetic.",
            avoid=(
                "memory runs out in the optimizer step or while the model is built. No activation is alive "
                "there."
            ),
        ),
        "offloaded": Value(
            slowdown=1.35,
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
    checks=(needs_block("checkpointing", "checkpoint"),),
    title=_title,
    not_exported=("it is autotune's own choice of what to keep; transformers checkpoints every layer whole"),
)

CHECKPOINTED_BLOCKS = Axis(
    "checkpointed_blocks",
    "how many of the blocks are checkpointed, from the first on",
    {"all": Value()},
    number=Value(
        saves=(
            "Of what checkpointing saves the share of so many blocks. The first ones are taken: backward comes to "
            "them last, when what the others kept is gone, so that a block is computed again where there is room."
        ),
        costs="Of what checkpointing costs the share of so many blocks.",
        avoid="all of them are checkpointed, which is `all`, or none, which is `checkpointing: none`.",
    ),
    rules=(
        Rule(
            {"checkpointing": ["none"]},
            "no block is checkpointed: leave out checkpointed_blocks, or say how (checkpointing: full)",
        ),
    ),
    checks=(_fewer_than_all,),
    title=lambda _: "",  # told with the way of checkpointing
    not_exported="transformers checkpoints every layer, and not some of them",
)
