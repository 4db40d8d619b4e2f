"""How the runs of a night are ended from outside: what they wait for returns, and they journal an interruption."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.errors import ProbeError
from autotune.executors.executor import Executor, ProbeResult
from autotune.interruption import Interruption
from autotune.outcome import Lost
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.site import Site
from autotune.sweep.places import Place
from autotune.tracing.client import Trace, Tracer


class StopRequest:
    """Whether the controller of a night was told to end: its runs must end too. For several threads."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._signal: int = signal.SIGTERM

    def end(self, number: int) -> None:
        """Have all runs end, each journaling that it was interrupted by this signal."""
        self._signal = number
        self._event.set()

    def check(self) -> None:
        """Raise Interruption, as the signal does in a run by itself, where runs must end."""
        if self._event.is_set():
            raise Interruption(self._signal)


class PlacedExecutor:
    """The executor of one run, which waits for its turn on the devices; ended as the night is."""

    def __init__(self, executor: Executor, place: Place, ended: StopRequest) -> None:
        self._executor = executor
        self._place = place
        self._ended = ended

    def describe(self) -> Site:
        """Return where probes run."""
        self._ended.check()
        return self._executor.describe()

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes that offloading may use there."""
        return self._executor.offload_room(folder, place)

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Wait for the devices, and run the request. Raises Interruption where the night's end ended it, too."""
        with self._place.turn():
            self._ended.check()
            try:
                result = self._executor.run(request, folder, timeout=timeout, on_progress=on_progress)
            except ProbeError:
                self._ended.check()  # it could not be launched because everything is being ended
                raise
        if isinstance(result.answer, Lost):
            self._ended.check()
        return result


class EndedTracer:
    """The tracer of one run; ended as the night is."""

    def __init__(self, tracer: Tracer, ended: StopRequest) -> None:
        self._tracer = tracer
        self._ended = ended

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> dict[Candidate, Trace]:
        """Trace what is asked for. Raises Interruption where the night's end ended it, too."""
        self._ended.check()
        try:
            traces = self._tracer.trace(request, folder, timeout=timeout, on_progress=on_progress)
        except ProbeError:
            self._ended.check()
            raise
        if any(trace.lost is not None for trace in traces.values()):
            self._ended.check()
        return traces
