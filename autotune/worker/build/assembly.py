"""Assemble a training from a probe's request."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from autotune.probe.protocol import ProbeRequest
from autotune.worker.build import composition
from autotune.worker.build.context import BuildContext
from autotune.worker.built_model import loss_of
from autotune.worker.data.placing import placing_on
from autotune.worker.data.synthetic import feed, rows_shorter, target_counter
from autotune.worker.techniques.offload_store import offload_store
from autotune.worker.training import Batch, Training


def assemble(request: ProbeRequest, files: bool | None = None) -> Training:
    """Build the model and apply the candidate's techniques.

    `files` chooses how offload works: in mapped files, where tensors are used, or by copies between the device and
    where they rest; None takes files on `cpu` and copies elsewhere. Raises InputError (the model cannot be used),
    CannotRun (this machine or model cannot run the candidate), OutOfSpace (offload found no room), and whatever the
    user's own code raises.
    """
    return training_of(drafted(request, composition.TECHNIQUES, files))


def drafted(
    request: ProbeRequest, techniques: Iterable[Callable[[BuildContext], None]], files: bool | None = None
) -> BuildContext:
    """Apply techniques to what the request's training begins with. `files`, and what is raised: as of `assemble`."""
    device = torch.device(request.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # streams and sharding work on the current device
    draft = BuildContext(request, device, offload_store(request.candidate, request.folder, device, files))
    try:
        for apply in techniques:
            apply(draft)
    except BaseException:
        draft.closing.close()
        raise
    return draft


def training_of(draft: BuildContext) -> Training:
    """Return the training that techniques have built."""
    request, device = draft.request, draft.device
    scaling = draft.scaling

    def loss(batch: Batch) -> Tensor:
        with draft.saving(batch), draft.precision():
            value = loss_of(draft.forward(**draft.casting(batch))).float()
        return value if scaling is None else scaling.scale(value)

    ranks = draft.ranks
    batches, loader = feed(draft.built, request, ranks, device)
    if loader is not None:
        draft.closing.callback(loader.close)

    shorter = rows_shorter(draft.built, request, ranks)

    gradients = None if draft.gradients is None else draft.gradients.all
    if draft.engine is not None:
        gradients = draft.engine.gradients

    return Training(
        model=draft.built.model,
        optimizer=draft.optimizer,
        device=device,
        loss=loss,
        batch=batches,
        place=placing_on(device, pinned=loader is None),
        tokens_per_sample=draft.built.tokens_per_sample,
        attention=draft.built.attention,
        close=draft.closing.close,
        ranks=ranks,
        reduction=draft.reduction,
        gradients=gradients,
        host_gradients=draft.gradients,
        loader=loader,
        shorter=shorter if callable(shorter) else None,
        of_one_length=shorter if isinstance(shorter, str) else "",
        targets=target_counter(draft.built),
        shards=draft.engine.shards if draft.engine else None,
        scaling=scaling,
    )
