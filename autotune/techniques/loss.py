"""How the loss is computed from the last hidden states."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

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
    not_exported="chunked loss is autotune's own technique: this library makes all logits at once",
)
