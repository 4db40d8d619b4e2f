"""The keywords of `autotune.tune()` and `autotune.estimate()` as editors and type checkers read them.

Names and defaults are those of the records in `autotune.options`; here stands only what Python code may pass for each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, TypeVar, get_type_hints

from autotune.candidate import Optimizer
from autotune.objective import ObjectiveName
from autotune.options import LauncherName, Options, StrategyName

Model = str | Path | Callable[[], Any]
"""A preset, a path to a config.json or its folder, a hub name, `module:function` or `file.py:function`; or the function
itself, which returns `(module, make_batch)`, `(module, dataset)` or `(module, dataset, collate)`."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class DataKeywords(TypedDict, total=False):
    """How a model trains: on what data, on how many devices."""

    seq_len: int | None
    lengths: str | Path | None
    train: Sequence[str] | None
    block_class: str | None
    trust_remote_code: bool | None
    gpus: int | None
    nodes: int | None
    headroom: float | None
    space: str | Path | None


class RunKeywords(DataKeywords, total=False):
    """The options of a run."""

    model: Model | None
    command: str | None
    axes: str | Path | None
    evaluation_command: str | None

    target_global_batch: Required[str | int]
    exact: bool | None
    objective: ObjectiveName | None
    speed_share: float | None
    price_per_hour: str | float | None
    device: str | None
    optimizer: Optimizer | None
    allow: str | Sequence[str] | None
    strategy: StrategyName | None
    predict: bool | None
    cluster: str | Path | None
    partition: str | None
    launcher: LauncherName | None
    seed: int | None
    max_probes: int | None
    training_time: str | float | None
    time_budget: str | float | None
    probe_timeout: str | float | None
    sample_time: str | float | None
    sample_steps: int | None
    proof_time: str | float | None
    memory_tolerance: float | None
    speed_tolerance: float | None


class EstimateKeywords(DataKeywords, total=False):
    """The options of an estimate, and the axes of one candidate."""

    model: Required[Model]

    gpu: str | None
    micro_batch: int | None
    accumulation_steps: int | None
    candidate: Mapping[str, Any] | None


def shows(keywords: Any, model: type[Options]) -> Callable[[_Function], _Function]:
    """Let `help()` and completion at a prompt show a function's keywords, with the defaults of a record's fields."""

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        kinds = get_type_hints(keywords)
        unset = inspect.Parameter.empty
        defaults = {
            name: unset if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in model.model_fields.items()
        }
        unset = inspect.Parameter.empty
        defaults = {
            name: unset if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in model.model_fields.items()
        }
        declared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kinds[name], default=default)
            for name, default in defaults.items()
        ]
        others = [parameter for parameter in own.parameters.values() if parameter.name != "options"]
        function.__signature__ = own.replace(parameters=[*declared, *others])  # type: ignore[attr-defined]
        return function

    return decorate
