"""Which grids are recorded: a model, a budget and a global batch each, and the axes of a ladder that fits them.

The models take a few MB to 100 MB, so that a trial is a matter of seconds. Budgets are such that a third of the trials
run out of memory, and differ in what helps: `what` says it, and `python -m benchmarks.record_grid --plan` what the
memory model expects of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.models.resolve import resolve
from autotune.search.space import Space
from autotune.specs import DeviceSpec, Goal, ModelSpec

LADDER: dict[str, tuple[Any, ...]] = {
    "checkpointing": ("none", "selective", "full"),
    "loss": ("full", "chunked"),
    "activation_offload": (False, True),
    "offload": ("none", "optimizer", "full"),
}
"""The axes of most grids, cheapest value first."""
WITHOUT_LOSS = {axis: values for axis, values in LADDER.items() if axis != "loss"} | {
    "optimizer_kernel": ("fused", "foreach")
}
"""For models without logits over a vocabulary: chunked loss is for causal language models."""
ROOMY: dict[str, tuple[Any, ...]] = {
    "checkpointing": ("none", "selective"),
    "loss": ("full", "chunked"),
    "offload": ("none", "optimizer"),
}
"""Where the plain rung fits: many micro-batches, the larger of which run out of memory; nothing always fits."""
ROOMY_WITHOUT_LOSS = {axis: values for axis, values in ROOMY.items() if axis != "loss"} | {
    "optimizer_kernel": ("fused", "foreach")
}
BLOCKS: dict[str, tuple[Any, ...]] = {
    "checkpointing": ("none", "selective", "full"),
    "checkpointed_blocks": ("all", 2, 4, 6, 8, 10),
    "offload": ("none", "optimizer", "full"),
}
"""For a deep model with a small vocabulary: how many blocks are checkpointed, and no choice of loss."""
RULES: tuple[dict[str, Any], ...] = (
    {
        "when": {"checkpointed_blocks": [2, 4, 6, 8, 10]}, "require": {"checkpointing": "full"},
        "because": "some blocks are fully checkpointed or none is: selective ones would double the grid",
    },
    {
        "when": {"offload": "full"}, "require": {"checkpointed_blocks": "all"},
        "because": "full offload frees a block's weights between its passes, so each block is recomputed",
    },
    {
        "when": {"offload": "full"}, "require": {"checkpointing": "full", "activation_offload": False},
        "because": "full offload frees a block's weights between its passes, so the block is recomputed",
    },
    {
        "when": {"activation_offload": True}, "require": {"checkpointing": ["none", "full"], "offload": "none"},
        "because": "activations that rest on disk are tried without what else goes there, which keeps the grid small",
    },
)  # fmt: skip
NARROW = {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Definition:
    """One grid: what is measured, and why."""

    name: str
    what: str
    """What makes it unlike the others."""
    preset: str
    changes: Mapping[str, Any]
    """Of the preset's configuration, to make it small."""
    seq_len: int
    device: str | None
    """With its budget; None where that suits the machine at hand (`live_cases.py`)."""
    target: str = "6 samples"
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: LADDER)
    precision: str = "bf16"

    def model(self) -> ModelSpec:
        """Return the model's specification."""
        spec = resolve(self.preset, base=Path.cwd())
        assert spec.config is not None, "a preset has a configuration"
        changes = {"bos_token_id": 1, "eos_token_id": 2, **self.changes}
        return spec.model_copy(update={"name": self.name, "config": {**spec.config, **changes}})

    def goal(self) -> Goal:
        """Return what runs on it aim at."""
        return Goal.model_validate({"target": self.target, "seq_len": self.seq_len})

    def device_spec(self) -> DeviceSpec:
        """Return the device that is recorded."""
        assert self.device is not None, f"{self.name} has no budget of its own"
        return DeviceSpec.parse(self.device)

    def space(self) -> Space:
        """Return the search space: its axes, and a graph that climbs down them in their order."""
        axes = {"precision": (self.precision,), **self.axes}
        rules = [rule for rule in (_within(one, axes) for one in RULES) if rule is not None]
        return Space.load(
            {
                "name": self.name, "description": self.what, "axes": axes, "constraints": rules,
                "graph": {"start": "baseline", "nodes": _nodes(axes)},
            },
            self.name,
        )  # fmt: skip


def _within(rule: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> dict[str, Any] | None:
    """Return a rule without the axes that a grid lacks; None where nothing of it is left."""
    require = {axis: value for axis, value in rule["require"].items() if axis in axes}
    if not require or not rule["when"].keys() <= axes.keys():
        return None
    return {**rule, "require": require}


def _nodes(axes: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the graph of `search_spaces/everything.yaml` as far as these axes go."""
    descent: list[dict[str, Any]] = [
        {axis: value}
        for axis, value in (("loss", "chunked"), ("checkpointing", "selective"), ("checkpointing", "full"))
        if value in axes.get(axis, ())
    ]
    descent += [{"offload": "optimizer"}] if "optimizer" in axes.get("offload", ()) else []
    descent += [{"checkpointing": "full", "offload": "full"}] if "full" in axes.get("offload", ()) else []
    names = [f"down_{number}" for number in range(1, len(descent) + 1)]
    plain = {axis: values[0] for axis, values in axes.items()}
    after = dict(zip(["baseline", *names], [*names, None], strict=True))

    def edges(name: str) -> dict[str, str]:
        following = after[name]
        down = dict.fromkeys(("oom", "unsupported"), following) if following else {}
        return {"ok": "grow", **{edge: to for edge, to in down.items() if to}}

    nodes: dict[str, Any] = {"baseline": {"title": "BF16 baseline", "set": plain, "next": edges("baseline")}}
    for name, change in zip(names, descent, strict=True):
        nodes[name] = {"title": _title(change), "set": change, "next": edges(name)}
    more = {axis: values[-1] for axis, values in axes.items() if axis in {"loss", "checkpointing"}}
    nodes["grow"] = {
        "title": "Grow the micro-batch", "grow": {"factor": 2, "resolution": 0.1}, "next": {"oom": "more"},
    }  # fmt: skip
    nodes["more"] = {
        "title": f"{_title(more)}, for a larger micro-batch", "set": more, "micro_batch": "beyond",
        "next": {"ok": "grow_more"},
    }  # fmt: skip
    nodes["grow_more"] = {"title": "Grow the micro-batch", "grow": {"factor": 2, "resolution": 0.25}}
    return nodes


def _title(change: Mapping[str, Any]) -> str:
    return " and ".join(f"{axis} {value}" for axis, value in change.items())


DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "gpt2-vocabulary", "logits over a large vocabulary are most of the memory, so chunked loss is what helps",
        "gpt2", {"n_embd": 128, "n_layer": 4, "n_head": 4}, 192, "cpu:680MiB",
    ),
    Definition(
        "gpt2-narrow", "few parameters and a small vocabulary: activations are all, and the plain rung fits a little",
        "gpt2", {"n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 4096}, 96, "cpu:550MiB", "16 samples", ROOMY,
    ),
    Definition(
        "gpt2-deep", "twelve narrow blocks under a tight budget: recomputation",
        "gpt2", {"n_embd": 192, "n_layer": 12, "n_head": 3, "vocab_size": 2048}, 192, "cpu:540MiB", axes=BLOCKS,
    ),
    Definition(
        "llama-gated", "a gated feed-forward and grouped queries, room for one sample of sixteen",
        "llama-3.2-1b", {**NARROW, "vocab_size": 8192}, 96, "cpu:560MiB", "16 samples", ROOMY,
    ),
    Definition(
        "bert-encoder", "an encoder without a vocabulary's loss to chunk",
        "bert-base", {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4,
                      "vocab_size": 4096}, 96, "cpu:578MiB", "16 samples",
        ROOMY_WITHOUT_LOSS,
    ),
    Definition(
        "gpt2-state", "state and gradients alone are over the budget: offload of the optimizer",
        "gpt2", {"n_embd": 384, "n_layer": 8, "n_head": 6, "vocab_size": 8192}, 128, "cpu:700MiB",
    ),
    Definition(
        "mixtral-experts", "four experts: parameters and state weigh more than activations",
        "mixtral-8x7b", {**NARROW, "num_hidden_layers": 4, "num_local_experts": 4, "vocab_size": 4096}, 128,
        "cpu:590MiB",
    ),
    Definition(
        "llama-vocabulary", "a vocabulary of 32,000 on a narrow model, under a budget that no full loss fits well",
        "llama-3.2-1b", {**NARROW, "num_hidden_layers": 4, "vocab_size": 32000}, 192, "cpu:640MiB",
    ),
    Definition(
        "vit-images", "images: no vocabulary, sequences of 197",
        "vit-base", {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4},
        197, "cpu:520MiB", axes=WITHOUT_LOSS,
    ),
)  # fmt: skip
"""In the order of what each adds to those before, so that a recording that has to end early has the most.

Compiled blocks are in none: under these budgets the compiler's own 62 MiB leave no room for them, a larger one leaves
too little that runs out of memory, and each of their trials takes half a minute.
"""
LIVE: tuple[Definition, ...] = (
    Definition(
        "live-pythia", "parallel attention and feed-forward, untied head", "pythia-160m",
        {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
         "vocab_size": 12000}, 128, None, "8 samples", precision="fp32",
    ),
    Definition(
        "live-qwen", "grouped queries with biases, a vocabulary of 16,000", "qwen2.5-0.5b",
        {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_window_layers": 4, "layer_types": None, "vocab_size": 16000}, 128, None,
        "8 samples", precision="fp32",
    ),
    Definition(
        "live-gpt2", "another width, depth and length than any grid's GPT-2", "gpt2",
        {"n_embd": 192, "n_layer": 3, "n_head": 3, "vocab_size": 6000}, 144, None, "8 samples", precision="fp32",
    ),
    Definition(
        "live-bert", "an encoder of another shape", "bert-base",
        {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4,
         "vocab_size": 8000}, 128, None, "8 samples", WITHOUT_LOSS, "fp32",
    ),
)  # fmt: skip
"""Cases of live runs, which are in no grid: so small that a trial takes a second or two. In fp32, which no processor
emulates. `live_cases.py` gives them the budget that they run under."""
SMALLEST = Definition(
    "smallest", "the smallest case: that the script runs", "tiny-gpt2", {}, 32, "cpu:1GiB", "2 samples",
    {"checkpointing": ("none", "full")},
)  # fmt: skip
