"""Where a candidate's model is built: on its device, off it, in files, or by one rank for all."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from autotune.techniques.sharding import IN_SHARDS, SHARDINGS, out_of_step
from autotune.worker.blocks import find_blocks
from autotune.worker.build.context import BuildContext
from autotune.worker.built_model import BuiltModel
from autotune.worker.errors import CannotRun
from autotune.worker.experts import inseparable, shared_rows
from autotune.worker.measuring.layer_drop import skips_layers
from autotune.worker.model import build_model, gather
from autotune.worker.techniques.mapped_files import MappedFiles, host_is_short, parameters_in
from autotune.worker.techniques.precision import born_in, cast_inputs, cast_parameter


def construct(draft: BuildContext) -> None:
    """Build the model with fresh weights, equal on all ranks, and find its blocks.

    Raises CannotRun, and as `build_model`.
    """
    request = draft.request
    # What will be sharded, offloaded or quantized is built whole off the device, and leaves for it block by block.
    candidate = request.candidate
    by_torch = candidate.engine == "torch"
    shards = candidate.sharding in IN_SHARDS if by_torch else SHARDINGS[candidate.sharding].weights
    sliced = candidate.tensor_parallel > 1
    away = candidate.offload == "full" or candidate.adapters == "qlora" or shards or sliced
    pure = request.candidate.precision == "bf16-pure"
    # A user's own function has to give fp32, as the model's contract says, and builds on the host: it is cast there.
    early = pure and request.model.source != "function"
    later = pure and not early and not away
    home = torch.device("cpu") if away or later else draft.device

    def build(around: AbstractContextManager[object]) -> BuiltModel:
        torch.manual_seed(request.seed)
        with born_in(torch.bfloat16) if early else nullcontext(), around:
            return build_model(request.model, request.seq_len, home, candidate.attention)

    if _built_by_one(draft):
        from autotune.worker.techniques.sharding.rank0_init import (  # late: ranks alone need it
            Rank0Weights,
            skeleton,
        )

        # Meshes of two dimensions have groups of their own, beside which NCCL's buffers for all would cost memory.
        direct = not sliced and not SHARDINGS[candidate.sharding].within_node
        draft.rank0_weights = Rank0Weights(draft.device if direct else home, draft.files)
        bare = draft.ranks.rank > 0
        try:
            draft.built = build(skeleton() if bare else _kept(draft, away))
        except RuntimeError:
            if not bare:
                raise
            draft.built = build(_kept(draft, away))  # code that reads what it draws: whole, as rank 0's
    else:
        draft.built = build(_kept(draft, away))
    if pure:
        for parameter in draft.built.model.parameters():
            cast_parameter(parameter, torch.bfloat16)
        draft.casting = partial(cast_inputs, dtype=torch.bfloat16)
    if later:
        gather(draft.built.model, draft.device)
    _check_experts(draft)
    _check_layers(draft)
    draft.forward = draft.built.model
    draft.blocks = find_blocks(draft.built.model, request.model.block_class)
    # Dropout must not depend on how many random numbers the build drew on which device. It differs by samples: what
    # the ranks of one model have whole, they must drop alike.
    torch.manual_seed(request.seed + draft.ranks.data_rank)


def _kept(draft: BuildContext, away: bool) -> AbstractContextManager[object]:
    """Return what puts into files the parameters of a model that is built whole: where that is `away` from a CPU, all.

    Away from a GPU, where a user's function always builds, those that host memory gets short of.
    """
    if draft.files is not None:
        return parameters_in(draft.files) if away else nullcontext()
    if away or draft.request.model.source == "function":
        return parameters_in(MappedFiles(draft.request.folder), host_is_short)
    return nullcontext()


def _built_by_one(draft: BuildContext) -> bool:
    """Tell whether rank 0 builds for all; what a user's own function does, every rank does for itself."""
    candidate, model = draft.request.candidate, draft.request.model
    apart = candidate.sharding in IN_SHARDS or candidate.tensor_parallel > 1
    return apart and candidate.engine == "torch" and draft.ranks.size > 1 and model.source != "function"


def _check_experts(draft: BuildContext) -> None:
    request = draft.request
    found = inseparable(request.candidate, draft.files is None, request.model.source)
    if shared_rows(draft.built.model) and found:
        raise CannotRun(found.axis, found.cause, found.reason)


def _check_layers(draft: BuildContext) -> None:
    reason = out_of_step(draft.request.candidate)
    if reason is not None and draft.ranks.data_size > 1 and skips_layers(draft.built.model):
        raise CannotRun("sharding", "context", reason)


def cut(draft: BuildContext) -> None:
    """Share matrices out to the ranks of one model; what is sharded too is prepared for that block by block."""
    if draft.mesh is not None:
        from autotune.worker.techniques.sharding.tensor_parallel import (
            MatrixSharder,  # late: half a second that other candidates save
        )

        # What is sharded once more is cut off the device, just before.
        shards = draft.request.candidate.sharding in IN_SHARDS
        place = draft.files.copy_of if shards and draft.files else None
        home = torch.device("cpu") if shards else draft.device
        slicing = MatrixSharder(draft.built, draft.mesh["tensor"], home, place, draft.rank0_weights)
        if shards:
            draft.prepare = slicing.cut
        else:
            slicing.cut(draft.built.model.modules())
    elif draft.rank0_weights is not None:
        draft.prepare = partial(draft.rank0_weights.bring, model=draft.built.model)
