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
    if not candidate.workers:
        return ""
    ahead = "" if candidate.prefetch == 2 else f" {candidate.prefetch} ahead"
    return f"{candidate.workers} loader worker{'s' * (candidate.workers > 1)}{ahead}"


def _nothing(_candidate: Candidate) -> str:
    return ""  # told with the workers


SEQUENCES = Axis(
    "sequences",
    {
        "full": Value(),
        "padded": Value(
            title="padded sequences",
            saves="nothing; it is what `--lengths` compares with",
            costs="arithmetic and memory for padding, and an attention mask of each row's square",
            avoid="the lengths differ much: then `packed`",
        ),
        "packed": Value(
            title="packed sequences",
            saves="padding: as many documents in a row as fit, with positions that begin anew",
            costs=(
                "a mask of each row's square under `sdpa` and `eager`, where the flash kernel needs none "
                "for full rows (`flash_attention_2` keeps documents apart without one). Not measured on a"
                " GPU"
            ),
            avoid=(
                "the model lets packed documents attend to each other: that is tried before the first "
                "step, and refused (OPT does)"
            ),
        ),
    },
    checks=(_unmeasured,),
    not_exported=(
        "the exported script averages the losses of micro-steps, whatever number of tokens they hold, so padded rows "
        "would count for too much"
    ),
)

WORKERS = Axis(
    "workers",
    {
        0: Value(),
        **{
            count: Value(
                saves="nothing; batches of a dataset are made beside the training",
                costs="host memory: each process, and `prefetch` batches of each in shared memory",
                avoid="the report says that hardly any time is spent waiting for data; there are fewer cores",
            )
            for count in (1, 2, 4, 8)
        },
    },
    title=_workers,
)

PREFETCH = Axis(
    "prefetch",
    {
        2: Value(),
        4: Value(
            saves="nothing; evens out batches that take unequal times",
            costs="twice the batches in advance",
            avoid="without workers: refused, since nothing is made in advance",
            rules=(
                Rule(
                    {"workers": [1, 2, 4, 8]}, "without loader workers nothing is made in advance (workers)"
                ),
            ),
        ),
    },
    title=_nothing,
)

PIN_MEMORY = Axis(
    "pin_memory",
    {
        False: Value(),
        True: Value(
            title="pinned batches",
            saves="nothing; a GPU copies a batch while it computes",
            costs="pinned host memory for each batch in advance",
            avoid="no GPU, where it does nothing",
        ),
    },
)
