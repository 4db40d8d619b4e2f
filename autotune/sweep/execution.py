"""What runs the probes of a night's cells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from autotune.executors.cluster import Sites
from autotune.executors.executor import Executor
from autotune.executors.find import find_executor, find_tracer
from autotune.executors.session import executing
from autotune.probe.launch import Launcher, launch
from autotune.probe.warm import WarmLauncher
from autotune.specs import DeviceSpec, RunSpec
from autotune.tracing.client import Tracer


class Hands(NamedTuple):
    """What one run works with."""

    executor: Executor
    tracer: Tracer


class Execution(Protocol):
    """Gives each run of a night its executor and its tracer. For several threads."""

    def hands(self, spec: RunSpec, device: DeviceSpec, root: Path) -> AbstractContextManager[Hands]:
        """Give what runs the probes of a run on a device, which need not be the one that its spec names.

        `root` is the run's folder. Raises InputError, or what else `find_executor` raises.
        """
        ...


class LocalExecution:
    """Runs the probes on this machine. All runs share the servers that fork warm probes; also a context manager."""

    def __init__(self, at_once: int) -> None:
        """`at_once` is how many runs may be under way: where it is several, each traces in one worker at a time."""
        self._workers = 1 if at_once > 1 else None
        self._warm = WarmLauncher()
        self._sites = Sites()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warm.close()

    @contextmanager
    def hands(self, spec: RunSpec, device: DeviceSpec, root: Path) -> Iterator[Hands]:
        """Give a local executor and a local tracer; of a run that names a cluster, those whose work is jobs there."""
        if spec.cluster is not None:
            with executing(spec, root, self._sites) as found:
                yield Hands(*found)
            return
        launcher: Launcher = self._warm if spec.launcher == "warm" else launch
        tracer = find_tracer(device, launcher, self._workers, spec.goal.gpus)
        yield Hands(find_executor(device, tracer, spec.goal.gpus, spec.goal.nodes, launcher), tracer)
