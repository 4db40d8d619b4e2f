"""What the rows of a batch hold, and how batches of a dataset are made."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.techniques.axis import Axis, Context, Rule, Value


def _unmeasured(candidate: Candidate, context: Context) -> str | None:
    if context.with_lengths is None:
        return None
    if candidate.sequences == "full" and context.with_lengths:
        return "with a length histogram sequences are padded or packed: no row is full of one but the longest"
    if candidate.sequences != "full" and not context.with_lengths:
        return f"{candidate.sequences} sequences need the lengths of the dataset's sequences (--lengths)"
    return None


def unpaddable(task: str) -> str | None:
    """Return why the rows of a model for this task are neither padded nor packed by a length histogram, or None."""
    if task == "causal-lm":
        return None
    if task == "custom":
        return "a model of your own makes its own batches, which pad or pack as they do; leave it out"
    return f"a length histogram is for causal language models, and this model's task is {task}; leave it out"


def _workers(candidate: Candidate) -> str:
    if not candidate.num_workers:
        return ""
    ahead = "" if candidate.prefetch_factor == 2 else f" {candidate.prefetch_factor} ahead"
    return f"{candidate.num_workers} loader worker{'s' * (candidate.num_workers > 1)}{ahead}"


def _nothing(_candidate: Candidate) -> str:
    return ""  # told with the workers


SEQUENCES = Axis(
    "sequences",
    "what a row of a batch holds, with --lengths",
    {
        "full": Value(),
        "padded": Value(
            title="padded sequences",
            saves="Nothing. It is what packed rows are compared with.",
            costs=(
                "Arithmetic and memory for padding, and an attention mask with the square of the row length."
            ),
            avoid="the lengths differ much: then use `packed`.",
        ),
        "packed": Value(
            title="packed sequences",
            saves="Padding. As many documents as fit share a row, each with positions that start at 0.",
            costs=(
                "A mask with the square of the row length under `sdpa` and `eager`. `flash_attention_2` keeps "
                "documents apart without one. None of this was measured on a GPU."
            ),
            avoid=(
                "the model lets packed documents attend to each other. That is tried before the first step and "
                "refused (OPT does)."
            ),
        ),
    },
    checks=(_unmeasured,),
    not_exported=(
        "the exported script averages the losses of micro-steps, whatever number of tokens they hold, so padded rows "
        "would count for too much"
    ),
)

NUM_WORKERS = Axis(
    "num_workers",
    "processes that make batches of a dataset",
    {
        0: Value(),
        **{
            count: Value(
                saves="Time: batches of a dataset are made while the model trains.",
                costs="Host memory: each worker process, and its prefetched batches in shared memory.",
                avoid=(
                    "the report shows hardly any time spent waiting for data, or there are fewer cores than "
                    "workers."
                ),
            )
            for count in (1, 2, 4, 8)
        },
    },
    title=_workers,
    beside_passes=True,
)

PREFETCH_FACTOR = Axis(
    "prefetch_factor",
    "batches that each of these processes makes in advance",
    {
        2: Value(),
        4: Value(
            saves="Time where batches take unequal times to make.",
            costs="Host memory: twice as many batches in advance.",
            avoid="there are no workers, since nothing is made in advance then.",
            rules=(Rule({"num_workers": [0]}, "without loader workers nothing is made in advance"),),
        ),
    },
    title=_nothing,
    beside_passes=True,
)

PIN_MEMORY = Axis(
    "pin_memory",
    "batches in pinned host memory",
    {
        False: Value(),
        True: Value(
            title="pinned batches",
            saves="Time: a GPU copies a batch while it computes.",
            costs="Pinned host memory for each batch in advance.",
            avoid="there is no GPU: it does nothing then.",
        ),
    },
    beside_passes=True,
)
