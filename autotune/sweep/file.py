"""The sweep file: a matrix of models, hardware, goals and spaces, and what bounds the runs of its cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from autotune.bounds import Seconds
from autotune.errors import InputError, Problem, nearest
from autotune.options import Limits, RunOptions
from autotune.printable import quoted
from autotune.results.thresholds import Thresholds
from autotune.results.webhook import check_url
from autotune.specs import DeviceSpec
from autotune.units import parse_duration
from autotune.user_files import parse_yaml, read_text, require_kind
from autotune.validation import Frozen, explain

SWEEP = "a sweep file"
"""The kind of file, as `user_files` knows it."""
Axis = Literal["model", "hardware", "goal", "space"]
AXES: tuple[Axis, ...] = ("model", "hardware", "goal", "space")
"""What a cell is a combination of, in the order of its name."""
MOST_CELLS = 100_000
"""Cells of a sweep."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{quoted(value)} names no folder; use up to 60 letters, digits, '.', '_' and '-'")
    return value


def _listed(value: object) -> object:
    """Take one value for a list of one."""
    return value if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{', '.join(map(quoted, twice))}: listed twice")
    return values


Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
_Values = Annotated[
    tuple[Text, ...], BeforeValidator(_listed), Field(min_length=1), AfterValidator(_distinct)
]
Age = Annotated[
    Seconds, BeforeValidator(lambda value: parse_duration(value) if isinstance(value, str) else value)
]
Priority = Annotated[int, Field(ge=-1000, le=1000)]
"""Cells of a higher one start first."""


class Matrix(Frozen):
    """The values of each axis; a sweep has a cell for each combination."""

    model: _Values
    """Models as `--model` takes them: presets, paths, hub names, functions."""
    hardware: _Values
    """Keys of `hardware`."""
    goal: _Values
    """Keys of `goals`."""
    space: _Values | None = None
    """Search spaces as `--space` takes them; without the axis each run takes the one that it would by itself."""


class _Meant(Frozen):
    """Values of axes that say which cells are meant."""

    model: Text | None = None
    hardware: Text | None = None
    goal: Text | None = None
    space: Text | None = None

    @property
    def axes(self) -> dict[Axis, str]:
        """The values that are given."""
        return {axis: value for axis in AXES if (value := getattr(self, axis)) is not None}


class Excluded(_Meant):
    """Cells of the matrix that are left out: all that have these values."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.axes:
            raise ValueError(f"name at least one of {', '.join(AXES)}")
        return self


class Included(_Meant, Limits):
    """What some cells have of their own: all of the matrix that have these values, or where none has, one cell more."""

    priority: Priority | None = None

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that are given."""
        return {name: getattr(self, name) for name in Limits.model_fields if name in self.model_fields_set}


class SweepGoal(RunOptions):
    """Options of a run that say what its cells have to meet: all but those that stand elsewhere in the file."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "model": "matrix.model", "space": "matrix.space", "device": "hardware", "price_per_hour": "hardware",
        "cluster": "hardware", "partition": "hardware",
        **dict.fromkeys(Limits.model_fields, "limits"),
    }  # fmt: skip
    """Options of a run that are none of a goal, and the key where they stand."""

    model: str = ""

    @model_validator(mode="after")
    def _is_only_a_goal(self) -> Self:
        wrong = [
            f"{name} stands under {self.ELSEWHERE[name]}"
            for name in self.model_fields_set
            if name in self.ELSEWHERE
        ]
        if wrong:
            raise ValueError(f"this is no part of a goal: {', '.join(sorted(wrong))}")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options that are given."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class SweepHardware(Frozen):
    """Where probes run, and how many at a time."""

    device: Annotated[
        tuple[Text, ...], BeforeValidator(_listed), Field(min_length=1), AfterValidator(_distinct)
    ]
    """A device as `--device` takes it; or a list of GPUs that are alike, which probe side by side."""
    at_once: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Probes at a time; by default one, and of a list as many as it has devices."""
    price_per_hour: Text | None = None
    """What one device costs an hour, such as 2.99 or '2.99 USD'."""
    cluster: Text | None = None
    """A cluster file as `--cluster` takes it: probes are jobs on its nodes, as many at a time as `at_once` says."""
    partition: Text | None = None
    """A partition of it, as `--partition` names it."""

    @field_validator("price_per_hour", mode="before")
    @classmethod
    def _accept_price(cls, value: object) -> object:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _has_devices(self) -> Self:
        devices = [DeviceSpec.parse(device) for device in self.device]
        kinds = {device.kind for device in devices}
        if len(devices) > 1 and kinds != {"cuda"}:
            raise ValueError(
                "a list of devices is one of GPUs, such as [cuda:0, cuda:1]; say how many of others with at_once"
            )
        if len({device.index for device in devices}) < len(devices):
            raise ValueError("a GPU is listed twice")
        if self.cluster is not None:
            if len(devices) > 1:
                raise ValueError(
                    "a job has the GPUs of its partition: name one device, and at_once for more jobs"
                )
        elif self.partition is not None:
            raise ValueError("partition: it is one of a cluster file, and no `cluster` is named")
        elif self.at_once not in {None, 1} and (len(devices) > 1 or kinds & {"cuda", "auto"}):
            raise ValueError(
                "at_once: two probes on one GPU would measure each other; list as many GPUs: device: [cuda:0, cuda:1]"
            )
        return self

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """The device of each place for a probe."""
        listed = tuple(DeviceSpec.parse(device) for device in self.device)
        return listed if len(listed) > 1 else listed * (self.at_once or 1)

    @property
    def shared(self) -> bool:
        """Whether its places are devices of this machine that ranks and runs share; jobs have their own."""
        return self.cluster is None and self.devices[0].kind == "cuda"

    @property
    def options(self) -> dict[str, str]:
        """The options of a run that it gives, but for the device."""
        names = ("price_per_hour", "cluster", "partition")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class SweepFile(Frozen):
    """All that a sweep is asked for."""

    name: Name
    """What its nights are kept under, and compared by."""
    matrix: Matrix
    include: tuple[Included, ...] = ()
    exclude: tuple[Excluded, ...] = ()
    hardware: Annotated[dict[Name, SweepHardware], Field(min_length=1)]
    goals: Annotated[dict[Name, SweepGoal], Field(min_length=1)]
    limits: Limits = Limits()
    """Of the run of each cell."""
    results: Text | None = None
    """Where the results of all nights are kept: a folder, or postgresql://...; None keeps them in the nights alone."""
    reuse_within: Age | None = None
    """Age of trials in `results` that stand for a probe of the very same (`results.reuse`); None measures everything.
    Finals and proofs are never spared."""
    regression: Thresholds = Thresholds()
    """What counts as a regression, where there are `results` to compare with."""
    webhook: Text | None = None
    """A URL that is told, as plain JSON, what a night came to beside the good nights before it."""
    cells_at_once: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Runs under way at a time, at most. Each takes tens of MiB of the machine that the sweep is started on."""

    @field_validator("webhook")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        try:
            check_url(value or "http://none")
        except InputError as error:
            raise ValueError(str(error).removeprefix("webhook: ")) from None
        return value

    @model_validator(mode="after")
    def _keeps_what_it_reads(self) -> Self:
        without = [
            name for name in ("reuse_within", "regression", "webhook") if name in self.model_fields_set
        ]
        if self.results is None and without:
            raise ValueError(f"{', '.join(without)}: nothing is known of earlier nights without `results`")
        return self

    @classmethod
    def parse(cls, data: dict[str, Any], source: str) -> Self:
        """Validate what a file holds. Raises InputError with every mistake, each with the key that it is about."""
        problems = _unknown_names(data, source)
        try:
            found = cls.model_validate(data)
        except ValidationError as error:
            raise InputError([*explain(error, cls, source), *problems]) from None
        if problems:
            raise InputError(problems)
        return found

    @classmethod
    def rest(cls, data: dict[str, Any]) -> Self | None:
        """Return a file with mistakes without what they are in, to look for more; None where that is no sweep."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            rest = _without_problems(data, error)
        try:
            return cls.model_validate(rest)
        except ValidationError:
            return None


def read_keys(file: Path) -> dict[str, Any]:
    """Return the keys of a sweep file as they are written. Raises InputError where it is none."""
    source = str(file)
    data = parse_yaml(read_text(file), source)
    require_kind(data, SWEEP, source)
    return data


def _without_problems(data: dict[str, Any], error: ValidationError) -> dict[str, Any]:
    """Return a file's keys without those that have a problem: of a goal or a hardware that one alone."""
    rest = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for detail in error.errors():
        key, *inner = detail["loc"] or ("",)
        if key in {"goals", "hardware"} and inner and isinstance(rest.get(str(key)), dict):
            rest[str(key)].pop(inner[0], None)
        else:
            rest.pop(str(key), None)
    return rest


def _unknown_names(data: Mapping[str, Any], source: str) -> list[str]:
    """Return what a file names and does not hold. It may have any other problem."""
    problems: list[str] = []

    def check(where: str, value: object, names: Sequence[str]) -> None:
        if isinstance(value, str) and names and value not in names:
            problems.append(
                Problem(f"{source}: {where}: there is no {quoted(value)}; {nearest(value, names)}", where)
            )

    matrix = data.get("matrix")
    listed = {axis: _texts(matrix.get(axis)) for axis in AXES} if isinstance(matrix, dict) else {}
    held: dict[Axis, tuple[str, ...]] = {
        "hardware": _texts(data.get("hardware")),
        "goal": _texts(data.get("goals")),
    }
    for axis, names in held.items():
        for value in listed.get(axis, ()):
            check(f"matrix.{axis}", value, names)
    for key, known in (("include", held), ("exclude", listed)):
        entries = data.get(key)
        for place, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
            for axis in AXES if isinstance(entry, dict) else ():
                check(f"{key}.{place}.{axis}", entry.get(axis), known.get(axis, ()))
    return problems


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list | tuple | dict) else (value,)
    return tuple(one for one in values if isinstance(one, str))
