"""Build a model by a function of the user's own, and check what it returned."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys

import torch
from torch import nn

from autotune.errors import InputError, nearest
from autotune.specs import ModelSpec
from autotune.worker.built_model import BuiltModel
from autotune.worker.data.batch_check import no_tensors
from autotune.worker.dataset import Samples
from autotune.worker.measuring.process_memory import limit_lifted


def from_function(spec: ModelSpec, seq_len: int) -> BuiltModel:
    """Import and call the user's function. Raises InputError for one that is not there, or returns something else."""
    module_name, _, function_name = spec.name.partition(":")
    if spec.path is not None:
        _look_first_in(spec.path, module_name)
    try:
        with limit_lifted():
            # As for autotune's own imports: OpenBLAS asks for ever where it is refused memory.
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module exists, but imports something that does not
        raise InputError(
            f"model {spec.name}: there is no Python module {module_name!r} in "
            f"{spec.path or 'the current folder'}"
        ) from error
    function = getattr(module, function_name, None)
    if function is not None and not callable(function):
        raise InputError(
            f"model {spec.name}: {function_name!r} of module {module_name!r} is of type "
            f"{type(function).__name__} and cannot be called; name a function that returns the model"
        )
    if function is None:
        functions = [
            name for name, value in vars(module).items() if callable(value) and not name.startswith("_")
        ]
        raise InputError(
            f"model {spec.name}: module {module_name!r} has no function {function_name!r}; "
            f"{nearest(function_name, functions)}"
        )
    return _check_contract(spec, function(), seq_len)


def _look_first_in(folder: str, module_name: str) -> None:
    """Let an import of the module find the one in `folder`, though one of its name was imported from elsewhere."""
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    package = module_name.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(package, [folder])
    known = sys.modules.get(package)
    if found is not None and known is not None and getattr(known, "__file__", None) != found.origin:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
            del sys.modules[name]


def _kind(returned: object) -> str:
    """Return what something is: of a tuple, what each of its parts is."""
    if not isinstance(returned, tuple):
        return type(returned).__name__
    return f"({', '.join(type(part).__name__ for part in returned)})"


def _check_contract(spec: ModelSpec, returned: object, seq_len: int) -> BuiltModel:
    match returned:
        case (nn.Module() as model, Samples() as dataset):
            built = BuiltModel(model, "custom", seq_len, dataset=dataset)
        case (nn.Module() as model, Samples() as dataset, collate) if callable(collate):
            built = BuiltModel(model, "custom", seq_len, dataset=dataset, collate=collate)
        case (nn.Module() as model, make_batch) if callable(make_batch):
            built = BuiltModel(model, "custom", seq_len, make_batch)
        case _:
            raise InputError(
                f"model {spec.name}: the function must return (nn.Module, make_batch), (nn.Module, dataset) or "
                f"(nn.Module, dataset, collate), it returned {_kind(returned)}"
            )
    wrong = {str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.dtype != torch.float32}
    if wrong:
        raise InputError(
            f"model {spec.name}: parameters must be torch.float32 (precision is an axis of the search), "
            f"found {', '.join(sorted(wrong))}"
        )
    if getattr(model, "hf_device_map", None):
        raise InputError(
            f"model {spec.name}: it was placed by device_map, which is made for inference: parameters to be "
            "trained may sit on the CPU or on disk, where no gradient reaches them; build it without device_map"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"model {spec.name}: no parameter requires a gradient, so there is nothing to train")
    if built.dataset is not None and not len(built.dataset):
        raise InputError(f"model {spec.name}: the dataset has no samples")
    made = "make_batch(micro_batch, seq_len)" if built.dataset is None else "a batch of the dataset"
    if reason := no_tensors(built.example()):
        raise InputError(f"model {spec.name}: {made} {reason}")
    return built
