"""The techniques of a candidate, each applied to a training that is being built, in the order in which they compose."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch

from autotune.candidate import Candidate, DeviceKind
from autotune.probe.protocol import ProbeRequest
from autotune.techniques.axis import Context
from autotune.techniques.check import refused
from autotune.techniques.data import unpaddable
from autotune.techniques.sharding import IN_SHARDS, REPLICATED, SHARDINGS
from autotune.worker.build.context import BuildContext
from autotune.worker.build.make_optimizer import maker_of, optimizer_of
from autotune.worker.build.model_init import construct, cut
from autotune.worker.configuration import width
from autotune.worker.data.packing import check_packing
from autotune.worker.data.synthetic import is_traced, text_symbols
from autotune.worker.errors import CannotRun, lacking
from autotune.worker.techniques.activation_offload import ActivationOffload
from autotune.worker.techniques.checkpointing import checkpoint_blocks
from autotune.worker.techniques.chunked_loss import chunk_loss
from autotune.worker.techniques.compilation import compile_blocks
from autotune.worker.techniques.float8 import use_float8
from autotune.worker.techniques.four_bit import quantize_blocks
from autotune.worker.techniques.gradient_offload import HostGradients
from autotune.worker.techniques.loss_scaling import ScaledOptimizer
from autotune.worker.techniques.mapped_files import MappedFiles, map_gradients, map_parameters
from autotune.worker.techniques.offload_store import offload_store
from autotune.worker.techniques.precision import (
    cast_inputs,
    compute_in,
    fp32_products,
    math_dtype,
)
from autotune.worker.training import StepOptimizer, Training


def check(draft: BuildContext) -> None:
    """Raise CannotRun where a candidate is refused, or its engine is not installed."""
    request = draft.request
    kind: DeviceKind = "cuda" if draft.files is None else "cpu"
    context = Context(
        accumulation_steps=request.accumulation_steps, world_size=request.world_size, nodes=request.nodes, kind=kind,
        with_lengths=request.lengths is not None,
    )  # fmt: skip
    if found := refused(request.candidate, context):
        raise CannotRun(found.axis, found.cause, found.reason)
    check_engine(request.candidate)


def check_engine(candidate: Candidate) -> None:
    """Raise CannotRun where the candidate's engine is not installed."""
    if candidate.engine == "deepspeed" and find_spec("deepspeed") is None:
        raise lacking("engine", "DeepSpeed's engine", "deepspeed")


def _check_attention(draft: BuildContext) -> None:
    attention = draft.request.candidate.attention
    if attention in {"flash_attention_2", "flex_attention"} and draft.device.type == "cpu":
        raise CannotRun("attention", "device", f"{attention} trains on a GPU only")
    if attention == "flash_attention_2" and find_spec("flash_attn") is None:
        raise lacking("attention", "flash_attention_2", "flash-attn")


def _check_kernels(draft: BuildContext) -> None:
    kind = (draft.request.model.config or {}).get("model_type")
    if draft.request.candidate.kernels == "liger" and kind is not None:
        from autotune.worker.techniques.kernels import check_type

        check_type(kind)


def _form_group(draft: BuildContext) -> None:
    candidate = draft.request.candidate
    if not candidate.distributed and (candidate.offload != "full" or draft.files is not None):
        return
    from autotune.worker.techniques.sharding import (
        process_group,  # late: half a second that other candidates save
    )

    draft.ranks = process_group.form_group(draft.device, draft.request.world_size, candidate.tensor_parallel)
    draft.closing.callback(process_group.end_group)
    if candidate.tensor_parallel > 1:
        draft.mesh = process_group.form_mesh(draft.device, draft.ranks)


def _set_precision(draft: BuildContext) -> None:
    candidate = draft.request.candidate
    # Under full offload a kept bf16 copy would hold on the device what was moved away from it.
    # DeepSpeed casts the model itself.
    precision = "fp32" if candidate.engine == "deepspeed" else candidate.precision
    draft.precision = compute_in(precision, draft.device, keep_casts=candidate.offload != "full")
    if candidate.garbage_collection_threshold != "none" and draft.device.type == "cuda":
        # torch looks at the threshold only where the process has a share of the memory, and takes 1.0 for no share.
        torch.cuda.set_per_process_memory_fraction(math.nextafter(1.0, 0.0), draft.device)
    if candidate.tf32 and draft.device.type != "cpu":
        draft.closing.enter_context(fp32_products("high"))


def _check_packing(draft: BuildContext) -> None:
    built = draft.built
    if draft.request.candidate.sequences != "packed" or unpaddable(built.task):
        return
    if any(parameter.is_meta for parameter in built.model.parameters()):
        return  # rank 0 has the values, and looks for all
    if not is_traced(built):  # a trace has no values to compare
        with torch.random.fork_rng(devices=[draft.device] if draft.device.type == "cuda" else []):
            check_packing(built, text_symbols(built, draft.request.seed), draft.precision)


def _fuse_kernels(draft: BuildContext) -> None:
    if draft.request.candidate.kernels == "liger":
        from autotune.worker.techniques.kernels import fused_kernels

        draft.closing.enter_context(fused_kernels(draft.built))


def _add_adapters(draft: BuildContext) -> None:
    candidate = draft.request.candidate
    if candidate.adapters != "none" and draft.request.model.train:
        raise CannotRun(
            "adapters",
            "context",
            "adapters are all that trains beside a frozen model: leave out --train, or adapters",
        )
    if candidate.adapters == "qlora":
        quantize_blocks(draft.built.model, draft.blocks, draft.device, math_dtype(candidate.precision))
    if candidate.adapters != "none":
        from autotune.worker.techniques.adapters import (
            add_adapters,  # late: peft takes a second that others save
        )

        add_adapters(draft.built.model, draft.blocks)


def _use_float8(draft: BuildContext) -> None:
    if draft.request.candidate.precision == "fp8":
        tokens = draft.request.candidate.micro_batch * draft.built.tokens_per_sample
        use_float8(draft.built.model, draft.blocks, draft.device, tokens)


def _chunk_loss(draft: BuildContext) -> None:
    if draft.request.candidate.loss == "chunked":
        chunk_loss(draft.built)


def _compile(draft: BuildContext) -> None:
    candidate = draft.request.candidate
    if candidate.compile == "regional":
        share, noting = candidate.kept_share, candidate.activation_offload
        draft.closing.enter_context(compile_blocks(draft.blocks, draft.device, share, noting))


def _checkpoint(draft: BuildContext) -> None:
    how = draft.request.candidate.checkpointing
    if how != "none":
        elsewhere = ActivationOffload(draft.device, draft.place) if how == "offloaded" else None
        checkpoint_blocks(draft.blocks, draft.request.candidate, elsewhere)


def _offload_activations(draft: BuildContext) -> None:
    if draft.request.candidate.activation_offload:
        draft.saving = ActivationOffload(draft.device, draft.place)


def _place_parameters(draft: BuildContext) -> None:
    candidate, model = draft.request.candidate, draft.built.model
    on_host = candidate.offload == "full"
    if candidate.engine == "deepspeed":
        return
    if candidate.sharding in IN_SHARDS or (on_host and draft.files is None):
        from autotune.worker.techniques.sharding.fully_sharded import all_reduce_last, mesh_of_nodes, shard

        hybrid = SHARDINGS[candidate.sharding].within_node
        mesh = None if draft.mesh is None else draft.mesh["data"]
        if hybrid:
            mesh = mesh_of_nodes(draft.device, draft.request.nodes)
        gathered = candidate.sharding == "zero2"
        shard(
            model, draft.blocks, candidate.precision, draft.device,
            keep_gathered=gathered, on_host=on_host and draft.files is None, reduce_dtype=candidate.reduce_dtype,
            mesh=mesh, files=draft.disk if on_host else None, prepare=draft.prepare,
        )  # fmt: skip
        # Sums of many micro-steps in bf16 would lose the small ones, so those are reduced whole each time.
        if hybrid and candidate.reduce_dtype == "fp32":
            draft.reduction = all_reduce_last(model)
    elif on_host and draft.files is not None:
        map_parameters(model, draft.files)
    in_place = draft.disk if on_host else draft.files
    if candidate.offload in {"gradients", "full"} and in_place is not None:
        map_gradients(model.parameters(), in_place)
    elif candidate.offload == "gradients" and not isinstance(draft.place, MappedFiles):
        draft.gradients = HostGradients(model.parameters(), draft.place)


def _replicate(draft: BuildContext) -> None:
    candidate = draft.request.candidate
    if candidate.sharding not in REPLICATED or candidate.engine == "deepspeed":
        return
    from autotune.worker.techniques.sharding.replicated import Replica

    replica = Replica(draft.built.model, candidate.reduce_dtype)
    draft.forward, draft.reduction = replica.model, replica.reduction


def _add_optimizer(draft: BuildContext) -> None:
    candidate, model = draft.request.candidate, draft.built.model
    if candidate.engine == "deepspeed":
        from autotune.worker.techniques.sharding.deepspeed import (
            DeepSpeedEngine as Engine,  # late: it takes a second
        )

        engine = draft.engine = Engine(
            model, maker_of(candidate, model.parameters()), candidate, width(draft.built.config), draft.device
        )
        draft.closing.callback(engine.close)
        draft.optimizer, draft.forward, draft.reduction = engine, engine.forward, engine.reduction
        if candidate.precision == "bf16":
            draft.casting = partial(cast_inputs, dtype=torch.bfloat16)
        return
    draft.optimizer = optimizer_of(candidate, model, draft.device, draft.place, draft.gradients)


def make_optimizer(request: ProbeRequest, training: Training) -> StepOptimizer:
    """Return the optimizer of another candidate for a training whose model is as that candidate's would be.

    Raises CannotRun where its library is not installed.
    """
    place = offload_store(request.candidate, request.folder, training.device)
    return optimizer_of(request.candidate, training.model, training.device, place)


def _scale_loss(draft: BuildContext) -> None:
    if draft.request.candidate.precision == "fp16":
        parameters = draft.built.model.parameters()
        draft.optimizer = draft.scaling = ScaledOptimizer(draft.optimizer, parameters, draft.device)


TECHNIQUES: tuple[Callable[[BuildContext], None], ...] = (
    check,  # first: it may refuse, and costs nothing
    _set_precision,  # likewise
    _check_attention,
    _check_kernels,  # before the model is built, which what is refused need not wait for
    _form_group,  # before anything depends on the rank
    construct,  # under full offload the parameters are born where they will live
    _check_packing,  # while the model is still as its library made it
    cut,  # first of what changes modules: a plan knows them as transformers made them
    _fuse_kernels,  # before what else changes modules, for it knows them by their classes
    _add_adapters,  # before what looks at parameters
    _use_float8,  # before blocks are wrapped in any way
    _chunk_loss,
    _compile,  # before what goes around a block's forward
    _checkpoint,  # before sharding, whose hooks must run outside the checkpoint, not again in it
    _offload_activations,
    _place_parameters,  # before the optimizer, which keeps references to them
    _replicate,  # around the whole model, with its parameters where they stay
    _add_optimizer,
    _scale_loss,  # around the optimizer, whose steps it may leave out
)
"""The techniques in the order of their application."""

PASSES: tuple[Callable[[BuildContext], None], ...] = (
    _chunk_loss,
    _compile,
    _checkpoint,
    _offload_activations,
)
"""Those that change how passes run and leave parameters alone: they set attributes of modules, and `saving`."""
