"""Tensor parallelism: matrices cut over ranks, by the plan that transformers ships with a model.

A plan names, by module, the style in which it is cut. The styles are torch's own (`parallelize_module`), the same for
every release of transformers: each rank keeps a slice of the columns of one matrix and of the rows of the next, so that
activations between the two are slices too, and one sum over the ranks follows the second (Shoeybi et al. 2019,
"Megatron-LM", section 3). Everything else (norms, the residual stream) is on every rank alike, from the same samples.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from autotune.techniques.sharding import indivisible
from autotune.worker.built_model import BuiltModel
from autotune.worker.errors import CannotRun
from autotune.worker.techniques.sharding.rank0_init import Rank0Weights
from autotune.worker.techniques.sharding.tensor_plan import COLUMNS, SUMMED, divided_numbers, tensor_plan

STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
}
"""torch's styles by transformers' names."""


class MatrixSharder:
    """Cuts a model's matrices over the ranks of `mesh` (one dimension), all of which have equal weights.

    With `rank0_weights` only rank 0 has them, and they come to the others module by module. What is cut becomes a
    distributed tensor, whose slice is on `device`, or where `place` puts it; what is whole stays a plain tensor, and
    moves there. Raises CannotRun where the model has no plan that torch can follow, or sizes that the ranks do not
    divide.
    """

    def __init__(
        self,
        built: BuiltModel,
        mesh: DeviceMesh,
        device: torch.device,
        place: Callable[[Tensor], Tensor] | None = None,
        rank0_weights: Rank0Weights | None = None,
    ) -> None:
        self._model, self._mesh, self._device, self._place = built.model, mesh, device, place
        self._rank0_weights = rank0_weights
        plan = tensor_plan(self._model)
        if reason := indivisible(divided_numbers(built.config), mesh.size()):
            raise CannotRun("tensor_parallel", "context", reason)
        self._waiting = {module: plan.get(name) for name, module in self._model.named_modules()}
        self._ties = _ties(self._model)
        _share_inputs(self._model, [name for name, style in plan.items() if style in COLUMNS], mesh)

    def cut(self, modules: Iterable[nn.Module]) -> None:
        """Cut modules; once none is left, tie what was tied. Those that were cut before are left as they are."""
        for module in modules:
            if module not in self._waiting:
                continue
            style = self._waiting.pop(module)
            if self._rank0_weights is not None:
                self._rank0_weights.bring([module], self._model)
            if style is not None and style != SUMMED:
                # Every rank has the same weights, so nothing has to be sent.
                parallelize_module(module, self._mesh, STYLES[style](), src_data_rank=None)
            _bring_home(module, self._device, self._place)
            if style == SUMMED:
                _sum_gradients(module, self._mesh)
        if not self._waiting:
            for (owner, name), *others in self._ties:
                for other, alias in others:
                    setattr(other, alias, getattr(owner, name))
            self._ties.clear()
            gc.collect()  # cycles would hold the whole parameters that the slices were cut from


def _ties(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Return where parameters are that several modules share."""
    owners: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners[id(parameter)].append((module, name))
    return [places for places in owners.values() if len(places) > 1]


def _bring_home(module: nn.Module, device: torch.device, place: Callable[[Tensor], Tensor] | None) -> None:
    """Give a module's own parameters and buffers memory of their own on the device: they may be parts of others.

    What is given as `place` makes it instead, for parameters.
    """

    def kept(tensor: Tensor) -> Tensor:
        if place is not None:
            return place(tensor.contiguous())
        return tensor.to(device).clone(memory_format=torch.contiguous_format)

    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if isinstance(parameter, DTensor):
            own: Tensor = DTensor.from_local(
                kept(parameter.to_local().detach()), parameter.device_mesh, parameter.placements, run_check=False,
                shape=parameter.shape, stride=parameter.stride(),
            )  # fmt: skip
        else:
            own = kept(parameter.detach())
        setattr(module, name, nn.Parameter(own, requires_grad=parameter.requires_grad))
    for name, buffer in module.named_buffers(recurse=False):
        setattr(module, name, buffer.to(device))


def _sum_gradients(module: nn.Module, mesh: DeviceMesh) -> None:
    """Sum over the ranks the gradients of parameters that each applies to its own heads alone.

    The module computes with views of its parameters, whose gradients are summed on their way: before FSDP2 takes them,
    which puts parameters of its own in the module's, without hooks, and before they are added to those of earlier
    micro-steps, whose sum was taken then.
    """

    def total(gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient := gradient.clone(), group=mesh.get_group())
        return gradient

    def show_views(_module: nn.Module, _args: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled():
            return
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                own[name] = parameter
                view = parameter.view_as(parameter)
                view.register_hook(total)
                module._parameters[name] = view

    def show_own(*_: Any) -> None:
        module._parameters.update(own)
        own.clear()

    own: dict[str, nn.Parameter] = {}
    module.register_forward_pre_hook(show_views)
    module.register_forward_hook(show_own, always_call=True)


def _share_inputs(model: nn.Module, names: list[str], mesh: DeviceMesh) -> None:
    """Let the matrices of one parent that take the same input have one distributed tensor of it.

    Their gradients for it are then added up on each rank, and summed over the ranks once, not once for each matrix.
    """
    parents: dict[str, list[nn.Module]] = defaultdict(list)
    for name in names:
        parents[name.rpartition(".")[0]].append(model.get_submodule(name))
    for parent, members in parents.items():
        if len(members) > 1:
            shared = _SharedInput(mesh)
            for member in members:
                member.register_forward_pre_hook(shared.distribute)
            model.get_submodule(parent).register_forward_hook(shared.forget, always_call=True)


class _SharedInput:
    """The latest input of some modules, as a plain and as a distributed tensor."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._known: tuple[Tensor, DTensor] | None = None

    def distribute(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        tensor, *others = args
        if self._known is None or self._known[0] is not tensor:
            self._known = tensor, DTensor.from_local(tensor, self._mesh, [Replicate()], run_check=False)
        return (self._known[1], *others)

    def forget(self, *_: Any) -> None:
        self._known = None
