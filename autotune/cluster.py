"""Where a cluster runs probes: the file that says how its partitions are reached, and what a run keeps of it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from autotune.bounds import Count, Seconds
from autotune.errors import InputError, nearest
from autotune.printable import quoted
from autotune.units import parse_bytes, parse_duration
from autotune.user_files import parse_yaml, read_text, require_kind, user_path
from autotune.validation import Frozen

CLUSTER = "a cluster file"
"""The kind of file, as `user_files` knows it."""
EngineName = Literal["slurm", "ray"]
"""What starts jobs on a cluster's nodes."""
ContainerRuntime = Literal["apptainer", "singularity", "enroot", "pyxis"]
"""What starts a container: a program that runs a command in an image, or Slurm's own plug-in (`--container-image`)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_OPTIONS = frozenset({
    "--job-name", "--output", "--error", "--open-mode", "--parsable", "--no-requeue", "--requeue", "--export",
    "--nodes", "--ntasks-per-node", "--time", "--array", "--wait", "--wrap", "--exclude", "--partition", "--account",
    "--qos", "--gres", "--cpus-per-task", "--mem", "--chdir", "--input", "--kill-on-invalid-dep", "--begin",
    "--test-only",
})  # fmt: skip
"""Options of sbatch that autotune gives itself, or that would keep it from hearing of the job."""


def _line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("this is one line without control characters")
    return value


def _variable(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{quoted(value)} is no name of an environment variable: letters, digits and _")
    return value


def _option(value: str) -> str:
    name = value.partition("=")[0]
    if not re.fullmatch(r"--[a-z][a-z0-9-]*", name):
        raise ValueError(f"{quoted(value)} is no long option of sbatch; write it like --constraint=a100")
    if name in _OWN_OPTIONS:
        raise ValueError(f"{name} is given by autotune itself, from the other keys of the partition")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(
            f"{quoted(value)} is no absolute path, which it has to be to mean the same on every node"
        )
    return value


Line = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_line)]
_Absolute = Annotated[Line, AfterValidator(_absolute)]
_Bytes = Annotated[
    Annotated[int, Field(gt=0)],
    BeforeValidator(lambda value: parse_bytes(value) if isinstance(value, str) else value),
]
_Duration = Annotated[
    Seconds, BeforeValidator(lambda value: parse_duration(value) if isinstance(value, str) else value)
]
_Share = Annotated[float, Field(gt=0)]


class Partition(Frozen):
    """What a job needs to run in one part of a cluster, and what it finds there."""

    partition: Line | None = None
    """The scheduler's name of the partition (Slurm); by default the key that it stands under."""
    account: Line | None = None
    """Whom jobs are charged to (Slurm)."""
    qos: Line | None = None
    """Quality of service (Slurm)."""
    gres: Line | None = None
    """What one device is to the scheduler (Slurm), such as `gpu` or `gpu:a100`: asked for once for each rank of a node.
    None asks for no device."""
    gpus: Annotated[float, Field(ge=0)] = 0
    """What one device is to Ray: GPUs for each rank of a node."""
    resources: dict[Line, _Share] = Field(default_factory=dict)
    """Ray's custom resources that each rank takes, by name."""
    cpus: Count | None = None
    """Processor cores for each rank; None leaves it to the scheduler (Ray: 1)."""
    memory: _Bytes | None = None
    """Host memory of a job on each node; None leaves it to the scheduler."""
    time_limit: _Duration | None = None
    """The longest that the partition lets a job run. A probe's own deadline is cut to end before it."""
    environment: dict[Annotated[str, AfterValidator(_variable)], Line] = Field(default_factory=dict)
    """Environment variables of jobs."""
    setup: tuple[Line, ...] = ()
    """Lines of shell (bash) that come before the probe: `module load cuda/12.8`."""
    container: Line | None = None
    """The image that probes run in; None for none."""
    container_runtime: ContainerRuntime = "apptainer"
    """What starts it."""
    container_options: tuple[Line, ...] = ()
    """Further options of that: `--nv`, `--bind=/data`."""
    options: tuple[Annotated[Line, AfterValidator(_option)], ...] = ()
    """Further long options of sbatch: `--constraint=a100`, `--reservation=tuning`."""


_OF_SLURM = (
    "partition",
    "account",
    "qos",
    "gres",
    "setup",
    "container",
    "container_options",
    "options",
    "memory",
)
_OF_RAY = ("gpus", "resources", "address")


class _Common(Frozen):
    engine: EngineName
    """What starts jobs: `slurm` or `ray`."""
    shared: _Absolute
    """A folder that nodes and login nodes see under the same path. Runs lie in it, and traces are kept there."""
    python: _Absolute
    """The Python in whose environment autotune and torch are installed on the nodes, by its path there."""
    address: Line = "auto"
    """Where Ray's cluster is: `auto` for the one that this machine belongs to, or HOST:PORT."""
    poll: Annotated[float, Field(ge=0.1, le=600)] = 2.0
    """Seconds between two questions to the scheduler, which answers for all jobs at once."""


class ClusterTarget(Partition, _Common):
    """One partition of a cluster, as a run keeps it: what `--cluster` and `--partition` came to."""

    name: str
    """The partition's key in the cluster file."""

    @property
    def traces(self) -> Path:
        """The cache of traces that all jobs share."""
        return Path(self.shared) / ".autotune" / "traces"

    def limited(self, seconds: float) -> float:
        """Return a deadline cut to what the partition allows, with `STARTING` to spare."""
        if self.time_limit is None:
            return seconds
        return max(1.0, min(seconds, self.time_limit - STARTING))

    def minutes(self, seconds: float) -> int:
        """Return the time limit to ask for, in whole minutes, for work whose own deadline is after `seconds`."""
        asked = math.ceil((seconds + STARTING) / 60)
        return asked if self.time_limit is None else max(1, min(asked, math.floor(self.time_limit / 60)))


STARTING = 120.0
"""Seconds of a job beyond a probe's own deadline: to start Python, and to end and reap the probe."""


class Cluster(_Common):
    """A cluster file: the engine, what holds everywhere, and the partitions by name."""

    partitions: Annotated[dict[Line, Partition], Field(min_length=1)]
    """What can be asked for with `--partition`."""

    @model_validator(mode="after")
    def _speaks_of_its_engine(self) -> Self:
        other = _OF_RAY if self.engine == "slurm" else _OF_SLURM
        wrong = [f"{key}" for key in other if key in self.model_fields_set]
        wrong += [
            f"partitions.{name}.{key}"
            for name, partition in self.partitions.items()
            for key in other
            if key in partition.model_fields_set
        ]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: nothing that engine {self.engine} knows")
        short = [
            name
            for name, partition in self.partitions.items()
            if partition.time_limit is not None and partition.time_limit <= 2 * STARTING
        ]
        if short:
            raise ValueError(
                f"{', '.join(f'partitions.{name}.time_limit' for name in short)}: a job takes {STARTING:.0f} s to "
                f"start and end, so give it more than {2 * STARTING:.0f} s"
            )
        return self

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a cluster file. Raises InputError with every mistake."""
        source = str(file)
        data = parse_yaml(read_text(file), source)
        require_kind(data, CLUSTER, source)
        return cls.load(data, source)

    def target(self, name: str | None) -> ClusterTarget:
        """Return a partition with all that a run needs of it; without a name the only one. Raises InputError."""
        if name is None and len(self.partitions) == 1:
            (name,) = self.partitions
        if name is None:
            raise InputError(f"--partition is missing: {nearest('', self.partitions)}", about="partition")
        if name not in self.partitions:
            raise InputError(
                f"--partition: the cluster file has no {quoted(name)}; {nearest(name, self.partitions)}",
                about="partition",
            )
        found = self.partitions[name]
        common = {key: getattr(self, key) for key in _Common.model_fields}
        return ClusterTarget(name=name, **{**common, **_set(found)})


def _set(partition: Partition) -> dict[str, Any]:
    return {key: getattr(partition, key) for key in Partition.model_fields}


def read_target(cluster: str | None, partition: str | None, base: Path) -> ClusterTarget | None:
    """Return what `--cluster` and `--partition` mean; None without both. A relative path starts at `base`.

    Raises InputError with every mistake.
    """
    if cluster is None:
        if partition is not None:
            raise InputError(
                "--partition names a part of a cluster; name the cluster's file too: --cluster FILE",
                about="partition",
            )
        return None
    try:
        found = Cluster.read(base / user_path(cluster, "--cluster"))
    except InputError as error:
        told = [str(problem) for problem in error.problems]  # a key of that file is no option of a run
        raise InputError(told, about="cluster") from None
    return found.target(partition)
