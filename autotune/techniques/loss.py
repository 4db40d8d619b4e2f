"""How the loss is computed from the last hidden states."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Value

LOSS = Axis(
    "loss",
    {
        "full": Value(),
        "chunked": Value(
            title="chunked loss",
            saves="the logits: 15 of every 16 bytes",
            costs="next to nothing: gradients are made while the logits are at hand",
            avoid=(
                "no causal language model of transformers, or one that caps or scales its logits: refused"
                " by name"
            ),
        ),
    },
    not_exported="chunked loss is autotune's own technique: this library makes all logits at once",
)
