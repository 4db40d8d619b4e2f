"""Kernels that fuse what a block does in several: liger-kernel's RMSNorm, rotation, SwiGLU and linear cross-entropy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from autotune.environment import how_to_install
from autotune.worker.built_model import BuiltModel
from autotune.worker.errors import CannotRun


@contextmanager
def fused_kernels(built: BuiltModel) -> Iterator[None]:
    """Patch a model of transformers, as liger-kernel has it for the model's type; while open, the model's module too.

    Functions that blocks call by name (the rotation of queries and keys) are the module's, so any other model of the
    type in this process gets them meanwhile. Raises CannotRun where liger-kernel is not installed, or knows no such
    type.
    """
    patch, _ = patcher()
    check_type(getattr(built.config, "model_type", None))
    # For types whose loss it does not fuse with the head, it exchanges torch's own function.
    patched = (sys.modules[type(built.model).__module__], torch.nn.functional)
    before = [(module, dict(vars(module))) for module in patched]
    # As transformers' Trainer calls it: everything that liger-kernel has for the type, by default.
    patch(model=built.model)
    try:
        yield
    finally:
        for module, values in before:
            for name, value in values.items():
                if getattr(module, name) is not value:
                    setattr(module, name, value)


def check_type(kind: str | None) -> None:
    """Raise CannotRun where liger-kernel has no kernels for models of a type, or is not installed."""
    _, types = patcher()
    if kind not in types:
        raise CannotRun(
            "kernels",
            "context",
            f"liger-kernel has no kernels for models of type {kind}; it has for {', '.join(types)}",
        )


def patcher() -> tuple[Callable[..., None], Collection[str]]:
    """Return liger-kernel's function that patches a model, and the types of models that it patches.

    Raises CannotRun where it is not installed.
    """
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        raise CannotRun(
            "kernels",
            "package",
            f"liger's kernels cannot be imported ({error}): {how_to_install('liger-kernel')}",
        ) from error
    return _apply_liger_kernel_to_instance, MODEL_TYPE_TO_APPLY_LIGER_FN
