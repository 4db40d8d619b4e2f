"""Assemble a training from a probe's request: the techniques, in the one order in which they compose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from autotune.constraints import illegal
from autotune.probe.protocol import ProbeRequest
from autotune.train.blocks import Blocks, find_blocks
from autotune.train.checkpointing import checkpoint_blocks
from autotune.train.in_backward import BackwardOptimizer
from autotune.train.mapped import MappedFiles, MappedOptimizer, map_gradients, map_parameters, parameters_in
from autotune.train.model import BuiltModel, build_model, loss_of
from autotune.train.optimizers import PlainOptimizer, optimizer_maker
from autotune.train.precision import compute_in
from autotune.train.refusal import CannotRun
from autotune.train.stream import stream
from autotune.train.streamed import StreamedOptimizer
from autotune.train.training import Batch, StepOptimizer, Training


def assemble(request: ProbeRequest, files: bool | None = None) -> Training:
    """Build the model and apply the candidate's techniques.

    `files` chooses how offload works: in mapped files, or by copies between host and device; None takes files
    on `cpu` and copies elsewhere. Raises InputError (the model cannot be used), CannotRun (this machine or
    model cannot run the candidate), OutOfSpace (offload found no room), and whatever the user's own code
    raises.
    """
    device = torch.device(request.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # streams and sharding work on the current device
    use_files = device.type == "cpu" if files is None else files
    draft = _Draft(request, device, MappedFiles(request.folder) if use_files else None)
    try:
        for apply in TECHNIQUES:
            apply(draft)
    except BaseException:
        draft.closing.close()
        raise

    def loss(batch: Batch) -> Tensor:
        with draft.precision():
            value = loss_of(draft.built.model(**batch))
        return value.float()

    return Training(
        model=draft.built.model,
        optimizer=draft.optimizer,
        device=device,
        loss=loss,
        batch=stream(draft.built, request.seq_len, request.seed, device),
        tokens_per_sample=draft.built.tokens_per_sample,
        attention=draft.built.attention,
        close=draft.closing.close,
    )


@dataclass
class _Draft:
    """A training in the making; each technique reads what those before it left."""

    request: ProbeRequest
    device: torch.device
    files: MappedFiles | None
    """Where offload keeps its tensors; None where it copies between host and device."""
    closing: ExitStack = field(default_factory=ExitStack)
    precision: Callable[[], AbstractContextManager[object]] = nullcontext
    built: BuiltModel = field(init=False)
    blocks: Blocks | None = None
    optimizer: StepOptimizer = field(init=False)


def _check(draft: _Draft) -> None:
    if reason := illegal(draft.request.candidate, draft.request.accumulation_steps):
        raise CannotRun(reason)


def _set_precision(draft: _Draft) -> None:
    candidate = draft.request.candidate
    # Under full offload a kept bf16 copy would hold on the device what was moved away from it.
    draft.precision = compute_in(candidate.precision, draft.device, keep_casts=candidate.offload != "full")


def _build(draft: _Draft) -> None:
    request = draft.request
    full = request.candidate.offload == "full"
    torch.manual_seed(request.seed)
    with parameters_in(draft.files) if full and draft.files else nullcontext():
        home = torch.device("cpu") if full else draft.device
        draft.built = build_model(request.model, request.seq_len, home)
    draft.blocks = find_blocks(draft.built.model, request.model.block_class)
    # Dropout must not depend on how many random numbers the build drew on which device.
    torch.manual_seed(request.seed)


def _checkpoint(draft: _Draft) -> None:
    if draft.request.candidate.checkpointing == "full":
        checkpoint_blocks(draft.blocks)


def _place_parameters(draft: _Draft) -> None:
    if draft.request.candidate.offload != "full":
        return
    model = draft.built.model
    if draft.files is not None:
        map_parameters(model, draft.files)
        map_gradients(model.parameters(), draft.files)
    else:
        from autotune.train.sharded import shard_to_host  # late: half a second that other candidates save

        end = shard_to_host(model, draft.blocks, draft.request.candidate.precision, draft.device)
        draft.closing.callback(end)


def _add_optimizer(draft: _Draft) -> None:
    candidate = draft.request.candidate
    parameters = list(draft.built.model.parameters())
    make = optimizer_maker(candidate.optimizer, sum(parameter.numel() for parameter in parameters))
    if candidate.optimizer_in_backward:
        draft.optimizer = BackwardOptimizer(parameters, make)
    elif candidate.offload == "none":
        draft.optimizer = PlainOptimizer(parameters, make)
    elif draft.files is not None:
        draft.optimizer = MappedOptimizer(parameters, make, draft.files)
    elif candidate.offload == "optimizer":
        draft.optimizer = StreamedOptimizer(parameters, make, draft.device)
    else:
        from autotune.train.sharded import HostOptimizer

        draft.optimizer = HostOptimizer(parameters, make)


TECHNIQUES: tuple[Callable[[_Draft], None], ...] = (
    _check,
    _set_precision,  # early: it may refuse, and costs nothing
    _build,  # under full offload the parameters are born where they will live
    _checkpoint,  # before sharding, whose hooks must run outside the checkpoint, not again in it
    _place_parameters,  # before the optimizer, which keeps references to them
    _add_optimizer,
)
"""The techniques in the order of their application."""
