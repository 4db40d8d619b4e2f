"""An `inspect` probe: what a model is, found without taking memory for it where that is possible."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
import transformers
from torch import nn

from autotune.probe.protocol import ProbeRequest
from autotune.specs import ModelFacts
from autotune.worker.blocks import find_blocks
from autotune.worker.built_model import BuiltModel, loss_of
from autotune.worker.configuration import experts_of, layers_of, width
from autotune.worker.data.batch_check import check_collated, check_made
from autotune.worker.errors import CannotRun
from autotune.worker.experts import parameter_count, shared_rows
from autotune.worker.measuring.layer_drop import skips_layers
from autotune.worker.measuring.phases import Phases
from autotune.worker.model import build_model
from autotune.worker.techniques.sharding.tensor_plan import divided_numbers, tensor_plan

SIZES = (2, 3)
"""Micro-batches of which a user's own batches are looked at before any probe."""

_EXPERTS = re.compile(r"(^|\.)experts(\.|$)")


def inspect_model(request: ProbeRequest, phases: Phases) -> ModelFacts:
    """Build the model and describe it.

    A configuration is built on the meta device: no memory, no values. A user's own function can only be run
    for real, so its batches are looked at too, and its model is tried on the device with one of one sample: a bug comes
    up here, with its traceback, and not in the first probe. Raises what `build_model` and the user's code raise, and
    ModelError for batches that are not what was asked for.
    """
    by_function = request.model.source == "function"
    device = torch.device(request.device if by_function else "meta")
    torch.manual_seed(request.seed)
    phases.enter("build")
    built = build_model(request.model, request.seq_len, device)
    if by_function:
        phases.enter("forward")
        check_batches(built, request.seq_len)
        _try_forward(built, device)
    return describe(built, request.model.block_class)


def describe(built: BuiltModel, block_class: str | None = None) -> ModelFacts:
    """Return the facts of a built model."""
    model = built.model
    blocks = find_blocks(model, block_class)
    parameters = list(model.parameters())  # distinct ones: tied weights are one parameter
    found = len(blocks.modules) if blocks is not None else 0
    return ModelFacts(
        task=built.task,
        model_class=type(model).__name__,
        parameters=parameter_count(model),
        trainable_parameters=_count(p for p in parameters if p.requires_grad),
        pinned_parameters=sum(1 << max(0, p.numel() - 1).bit_length() for p in parameters if p.requires_grad),
        active_parameters=active_parameters(model, built.config),
        layers=layers_of(built.config) or found,
        hidden=width(built.config),
        block_class=blocks.class_name if blocks is not None else None,
        blocks=found,
        tokens_per_sample=built.tokens_per_sample,
        uncut=_why_uncut(model),
        divided=divided_numbers(built.config) if hasattr(built.config, "get_text_config") else {},
        skips_layers=skips_layers(model),
        attention=built.attention,
        torch_version=torch.__version__,
        transformers_version=transformers.__version__,
    )


def _why_uncut(model: nn.Module) -> str:
    """Return why tensor parallelism cannot cut the model, or nothing."""
    try:
        tensor_plan(model)
    except CannotRun as refusal:
        return str(refusal)
    return ""


def active_parameters(model: nn.Module, config: Any) -> int:
    """Return the parameters that one token meets in a forward pass.

    In a mixture of experts a router sends each token to `k` of `n` equal experts, so the experts' parameters
    count k / n (Shazeer et al. 2017, section 2; Mixtral 8x7B: 2 of 8, 12.9 of 46.7 billion, Jiang et al.
    2024, section 2.1). Routers, shared experts and all else count in full. The experts are what transformers
    keeps under the name `experts`; `k` and `n` are the configuration's.
    """
    total = parameter_count(model)
    chosen, available = experts_of(config)
    if not chosen:
        return total
    shared = shared_rows(model)
    named = [(name, p) for name, p in model.named_parameters() if p not in shared]
    experts = _count(p for name, p in named if _EXPERTS.search(name))
    return total - experts + experts * chosen // available


def check_batches(built: BuiltModel, seq_len: int) -> None:
    """Raise ModelError where a user's batches of two sizes do not hold what was asked for; and what making them raises.

    Of one sample nearly everything looks right.
    """
    for size in SIZES:
        if built.make_batch is not None:
            check_made(built.make_batch(size, seq_len), size, seq_len)
        elif built.dataset is not None:
            samples = [built.dataset[0] for _ in range(size)]
            check_collated(built.collate(samples), size, built.collate(samples[:1]), copies=True)


def _try_forward(built: BuiltModel, device: torch.device) -> None:
    batch = {name: value.to(device) for name, value in built.example().items()}
    with torch.no_grad():
        loss_of(built.model(**batch))


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
