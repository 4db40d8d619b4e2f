"""Assemble a training from a probe's request: the techniques, in the one order in which they compose."""

from __future__ import annotations

import torch
from torch import Tensor

from autotune.probe.protocol import ProbeRequest
from autotune.train.blocks import find_blocks
from autotune.train.checkpointing import checkpoint_blocks
from autotune.train.model import build_model, loss_of
from autotune.train.optimizers import PlainOptimizer, optimizer_maker
from autotune.train.precision import compute_in
from autotune.train.stream import stream
from autotune.train.training import Batch, Training


def assemble(request: ProbeRequest) -> Training:
    """Build the model and apply the candidate's techniques.

    Raises InputError (the model cannot be used), CannotRun (this machine or model cannot run the candidate),
    OutOfSpace (offload found no room) and whatever the user's own code raises.
    """
    candidate, device = request.candidate, torch.device(request.device)
    precision = compute_in(candidate.precision, device)
    torch.manual_seed(request.seed)
    built = build_model(request.model, request.seq_len, device)
    blocks = find_blocks(built.model, request.model.block_class)
    if candidate.checkpointing == "full":
        checkpoint_blocks(blocks)
    optimizer = PlainOptimizer(built.model.parameters(), optimizer_maker(candidate.optimizer))
    torch.manual_seed(request.seed)

    def loss(batch: Batch) -> Tensor:
        with precision():
            value = loss_of(built.model(**batch))
        return value.float()

    return Training(
        model=built.model,
        optimizer=optimizer,
        device=device,
        loss=loss,
        batch=stream(built, request.seq_len, request.seed, device),
        tokens_per_sample=built.tokens_per_sample,
        attention=built.attention,
        close=lambda: None,
    )
