"""How the loss is computed from the last hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.candidate import Candidate
from autotune.techniques.axis import Axis, Context, Rule, Value

if TYPE_CHECKING:
    from autotune.specs import Task


def unchunked(task: Task, name: str) -> str | None:
    """Return why the loss of a model of a task cannot be made in chunks, or None; `name` is the model's class."""
    if task == "causal-lm":
        return None
    return f"chunked loss is for transformers' causal language models with their usual loss, not {name}"


def _of_another_task(candidate: Candidate, context: Context) -> str | None:
    model = context.model
    return None if candidate.loss == "full" or model is None else unchunked(model.task, model.model_class)


LOSS = Axis(
    "loss",
    "how much of the sequence's logits is made at a time, of causal language models",
    {
        "full": Value(),
        "chunked": Value(
            title="chunked loss",
            saves=(
                "The logits and their gradient: 15 of every 16 bytes, because a sixteenth of the sequence is "
                "computed at a time."
            ),
            costs="Next to nothing: the gradient of a chunk is made while its logits are in memory.",
            avoid=(
                "the model is no causal language model of transformers, or caps or scales its logits. Both are "
                "refused, and the message names the reason."
            ),
            rules=(
                Rule(
                    {"sharding": ["zero3"]},
                    (
                        "chunked loss multiplies by the head's weight itself, which zero3 gathers only while the "
                        "head's module is called"
                    ),
                ),
            ),
        ),
    },
    checks=(_of_another_task,),
    not_exported="chunked loss is autotune's own technique: this library makes all logits at once",
    beside_passes=True,
)
