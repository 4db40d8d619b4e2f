"""A recorded grid: what the candidates of a space came to on one device, in a file that replays them.

One JSON line a fact, appended as it is measured: first what was measured and where (`GridHeader`), then trials, traces
and which of the best cannot be told apart, in any order. A torn last line (whoever recorded was killed) is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from autotune.bounds import Duration, Steps
from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.options import Limits
from autotune.outcome import Ok, Outcome
from autotune.site import Site
from autotune.specs import DeviceSpeed, Goal, ModelFacts, ModelSpec
from autotune.units import MIB
from autotune.user_files import read_bytes
from autotune.validation import Frozen

LARGEST = 512 * MIB
"""Bytes of a recorded grid: one of a thousand trials and a hundred traces takes 20 MiB."""


class NotRecorded(InputError):
    """A replay was asked for what its grid does not hold."""


class Conditions(Frozen):
    """What a measurement was made under."""

    time: str
    """When it began (UTC)."""
    commit: str
    """Of the code that measured, with `+` behind it where files had been changed; empty where there was no checkout."""
    environment: dict[str, str]
    """Versions and machine."""
    load_before: float
    """Processes that ran or waited to run, the mean of the last minute (the system's load average), at the start."""
    load_after: float
    """The same at the end; the measurement's own processes are in it."""


class GridHeader(Frozen):
    """What a grid is of: everything that a run has to share to be answered from it."""

    type: Literal["grid"] = "grid"
    version: Literal[1] = 1
    """Of the format."""
    name: str
    model: ModelSpec
    facts: ModelFacts
    goal: Goal
    space: dict[str, Any]
    """The search space, as a run's spec holds it."""
    site: Site
    """The device that trials ran on and its machine."""
    minimum: int
    """Bytes that the framework takes of that device before any model."""
    baseline: int
    """Bytes that the inspection found taken before the model was built."""
    speed: DeviceSpeed | None = None
    """What the inspection timed of the device."""
    inspection_seconds: Duration
    """Wall time of the inspection: mostly the start, with imports, of the server that warm probes are forked from."""
    cold_start_seconds: Duration
    """From the launch of a worker that imports everything itself until it began to build the model."""
    rooms: dict[Literal["host", "disk"], int]
    """Bytes that offloading could use."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the device for the plainest candidate."""
    seed: int = 0
    limits: Limits = Limits()
    """How long trials were measured."""
    conditions: Conditions


class GridPoint(Frozen):
    """One measured trial."""

    type: Literal["point"] = "point"
    candidate: Candidate
    accumulation_steps: Steps
    """Micro-steps of a whole global step."""
    round: Annotated[int, Field(ge=0)] = 0
    """0 for the first measurement; further ones are of the best, in rounds of which each measures all of them."""
    outcome: Outcome
    seconds: Duration
    """Wall time from launch to the last process gone."""
    start_seconds: Duration | None = None
    """Of these, until the worker began to build the model: start and imports. None where it came to none."""
    build_seconds: Duration | None = None
    """From then to the first forward pass; None where it came to none."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that the executor set for the probe."""
    conditions: Conditions

    @field_validator("outcome")
    @classmethod
    def _is_measured_to_the_end(cls, value: Outcome) -> Outcome:
        if isinstance(value, Ok) and value.timing is None:
            raise ValueError("it ended before its speed was known, so it can answer for no probe")
        return value


class GridTrace(Frozen):
    """What came of tracing one rung for the memory model."""

    type: Literal["trace"] = "trace"
    candidate: Candidate
    seconds: Duration
    """Wall time of the trace, beyond the start of the worker that makes any number of them."""
    start_seconds: Duration
    """Wall time of that start."""
    reason: str = ""
    """Why there is none; empty where there is one."""
    timeline: str = ""
    """The trace's own format, gzip in base64; empty where there is none."""


class GridEquals(Frozen):
    """Which of the best could not be told from the fastest when they were measured again in alternation."""

    type: Literal["equal"] = "equal"
    rounds: Annotated[int, Field(ge=1)]
    fastest: Candidate
    equals: tuple[Candidate, ...]
    """The fastest among them."""
    compared: tuple[Candidate, ...]
    """All that were measured again."""


GridLine = GridHeader | GridPoint | GridTrace | GridEquals
LINE: TypeAdapter[GridLine] = TypeAdapter(Annotated[GridLine, Field(discriminator="type")])


@dataclass(frozen=True)
class RecordedGrid:
    """The lines of a recorded grid, sorted."""

    source: str
    """The file, for messages."""
    header: GridHeader
    points: dict[Candidate, GridPoint] = field(default_factory=dict)
    """The first measurement of each candidate."""
    repeats: dict[Candidate, tuple[GridPoint, ...]] = field(default_factory=dict)
    """Further ones, by round."""
    traces: dict[Candidate, GridTrace] = field(default_factory=dict)
    equals: GridEquals | None = None
    """The newest comparison."""

    @classmethod
    def of(cls, lines: Iterable[GridLine], source: str) -> RecordedGrid:
        """Sort lines. Raises InputError where the header is not the first, or a trial stands there twice."""
        header: GridHeader | None = None
        points: dict[Candidate, GridPoint] = {}
        repeats: dict[Candidate, tuple[GridPoint, ...]] = {}
        traces: dict[Candidate, GridTrace] = {}
        equals: GridEquals | None = None
        for number, line in enumerate(lines, start=1):
            if isinstance(line, GridHeader) != (header is None):
                raise InputError(f"{source}:{number}: a recorded grid says first what it is of, and once")
            match line:
                case GridHeader():
                    header = line
                case GridPoint(round=0):
                    if line.candidate in points:
                        raise InputError(
                            f"{source}:{number}: this trial was recorded before: {line.candidate.key()}"
                        )
                    points[line.candidate] = line
                case GridPoint():
                    repeats[line.candidate] = (*repeats.get(line.candidate, ()), line)
                case GridTrace():
                    traces[line.candidate] = line
                case GridEquals():
                    equals = line
        if header is None:
            raise InputError(f"{source} is no recorded grid: it is empty")
        return cls(source, header, points, repeats, traces, equals)

    def mismatch(self, model: ModelSpec, goal: Goal) -> list[str]:
        """Return why runs of a model towards a goal cannot be answered from this grid, a sentence each."""
        ours, theirs = self.header.goal, goal
        wanted = (
            ("model", self.header.model.name, model.name, _same_model(self.header.model, model)),
            ("sequence length", ours.seq_len, theirs.seq_len, ours.seq_len == theirs.seq_len),
            ("global batch", ours.target, theirs.target, ours.target == theirs.target),
            ("number of devices", ours.gpus, theirs.gpus, ours.gpus == theirs.gpus),
            ("number of nodes", ours.nodes, theirs.nodes, ours.nodes == theirs.nodes),
            ("dataset", _file(ours), _file(theirs), ours.lengths == theirs.lengths),
        )
        return [
            f"{self.source} was recorded with another {what} ({mine}, asked for {asked})"
            for what, mine, asked, same in wanted
            if not same
        ]

    def samples(self, candidate: Candidate) -> tuple[Ok, ...]:
        """Return every measurement of a candidate that trained, the first one first."""
        found = (self.points.get(candidate), *self.repeats.get(candidate, ()))
        return tuple(point.outcome for point in found if point is not None and isinstance(point.outcome, Ok))


def read_grid(path: Path) -> RecordedGrid:
    """Read a recorded grid. Raises InputError, naming file and line, for a missing or damaged one."""
    return RecordedGrid.of(parse_lines(read_bytes(path, most=LARGEST), path)[0], str(path))


def parse_lines(content: bytes, path: Path) -> tuple[list[GridLine], int]:
    """Return the lines and the number of bytes that hold whole ones. Raises InputError for damage before the last."""
    found: list[GridLine] = []
    whole = 0
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            found.append(LINE.validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(
                f"{path}:{number}: no line of a recorded grid: {where}: {first['msg']}"
            ) from None
        whole += len(line) + 1
    return found, whole


def append_line(path: Path, line: GridLine) -> None:
    """Write one line durably, over what a write that was cut short has left."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(handle, "r+b") as file:
        content = file.read()
        file.seek(content.rfind(b"\n") + 1)
        file.truncate()
        file.write(line.model_dump_json(exclude_defaults=False).encode() + b"\n")
        file.flush()
        os.fsync(handle)


def _same_model(one: ModelSpec, other: ModelSpec) -> bool:
    """Tell whether two name one model; where it was found does not matter."""
    left, right = (spec.model_dump(exclude={"name", "path"}) for spec in (one, other))
    return left == right and (one.source != "function" or one.name == other.name)


def _file(goal: Goal) -> str:
    return goal.lengths.file if goal.lengths else "none"
