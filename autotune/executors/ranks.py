"""Probes of several ranks on this machine: a process tree under its own supervisor for each, ended together."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.device import Device
from autotune.executors.executor import ProbeResult
from autotune.executors.local import LocalExecutor
from autotune.interruption import shielded
from autotune.outcome import Ok, Outcome, Timeout
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.probe.ranks import RankOutcome, join
from autotune.site import Site

GRACE = 3.0
"""Seconds that the other ranks get to say what happened to them, once one has failed."""
SPARE = 5.0
"""Seconds after the group's deadline at which each supervisor ends its rank by itself, if this process stands still."""


class _Started:
    """A rank's supervisor has started, after whatever its launch had to wait for."""


_Event = tuple[int, _Started | Progress | ProbeResult | BaseException]
LOOK = 0.2
"""Seconds between two looks at how ranks elsewhere fare."""


@dataclass(frozen=True)
class Elsewhere:
    """Ranks of the same probe that run on other machines, each beside an executor of its own."""

    first: int
    """The number of the first rank here."""
    rendezvous: Path
    """The file on a shared disk by which all ranks find each other."""
    failed: Callable[[], bool]
    """Tells whether one of the others has failed, so that those here are to end."""


@dataclass(frozen=True)
class RankEnded:
    """What came of one rank."""

    outcome: RankOutcome
    result: ProbeResult


def joined(ended: Sequence[RankEnded], accumulation_steps: int, variables: Mapping[str, str]) -> ProbeResult:
    """Return the result of a probe from those of all its ranks."""
    results = [rank.result for rank in ended]
    return ProbeResult(
        answer=join([rank.outcome for rank in ended], accumulation_steps),
        baseline=max((one.baseline for one in results if one.baseline is not None), default=None),
        seconds=max(one.seconds for one in results),
        leftovers=sum(one.leftovers for one in results),
        variables=dict(variables),
    )


class RanksExecutor:
    """Runs each request as one rank on each device. The first to fail ends all, and no rank outlives the others.

    Several nodes are groups of ranks on this machine that talk over loopback: each rank is told by its environment, in
    the words of torch's launcher, which node it is in, so that what looks at nodes (hybrid sharding) does what it
    would on machines of their own.
    """

    def __init__(self, devices: Sequence[Device], launcher: Launcher = launch, nodes: int = 1) -> None:
        assert len(devices) % nodes == 0, "as many ranks in each node"
        self._devices = tuple(devices)
        self._launch = launcher
        self._nodes = nodes
        self._alone = LocalExecutor(self._devices[0], launcher)

    def describe(self) -> Site:
        """Return the first device, and this machine."""
        return self._alone.describe()

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the environment variables that every rank runs under."""
        return self._environment(candidate, "lo")

    def _environment(self, candidate: Candidate, interface: str | None) -> dict[str, str]:
        """Return these variables; ranks talk over `interface` unless another is named, and None leaves that to gloo."""
        interface = os.environ.get("GLOO_SOCKET_IFNAME", interface)
        shared = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
        return {**self._alone.environment(candidate), **shared}

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes of host memory or disk that each rank's offload may use."""
        return self._alone.offload_room(folder, place) // len(self._devices)

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Launch all ranks, watch them, and join their verdicts; an inspection needs one process alone."""
        if request.world_size == 1:
            return self._alone.run(request, folder, timeout=timeout, on_progress=on_progress)
        assert (request.world_size, request.nodes) == (len(self._devices), self._nodes), "one device a rank"
        place = ProbeFolder(folder)
        place.root.mkdir(parents=True, exist_ok=True)
        place.rendezvous.unlink(missing_ok=True)
        try:
            variables = self.environment(request.candidate)
            alone = Elsewhere(0, place.rendezvous, lambda: False)
            ended = _Group(variables, request, place, timeout, self._devices, self._launch, alone).run(
                on_progress
            )
            return joined(ended, request.accumulation_steps, variables)
        finally:
            place.rendezvous.unlink(missing_ok=True)

    def run_part(
        self,
        request: ProbeRequest,
        folder: Path,
        elsewhere: Elsewhere,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[list[RankEnded], dict[str, str]]:
        """Launch those ranks of a probe that are this machine's; return what came of each, and their variables.

        They end with the first that fails, here or elsewhere. Raises as `run`.
        """
        place = ProbeFolder(folder)
        place.root.mkdir(parents=True, exist_ok=True)
        variables = self._environment(request.candidate, None)  # loopback leads to no other machine
        group = _Group(variables, request, place, timeout, self._devices, self._launch, elsewhere)
        return group.run(on_progress), variables


class _Group:
    """The ranks of one probe, each in a thread that waits for its processes. They have one deadline, held here."""

    def __init__(
        self,
        variables: dict[str, str],
        request: ProbeRequest,
        place: ProbeFolder,
        timeout: float,
        devices: Sequence[Device],
        launcher: Launcher,
        elsewhere: Elsewhere,
    ) -> None:
        self._elsewhere = elsewhere
        self._request = request
        self._variables = variables
        self._events: queue.Queue[_Event] = queue.Queue()
        self._timeout = timeout
        self._deadline: float | None = None
        """Of the whole group, on the monotonic clock; None until all have started."""
        self._expired = False
        self._reports: dict[int, Report] = {}
        self._cancel, self._held = os.pipe()
        self._threads = []
        each = request.world_size // request.nodes
        for rank, device in enumerate(devices, elsewhere.first):
            added = {
                **variables,
                **device.environment(request.candidate),
                "RANK": str(rank), "WORLD_SIZE": str(request.world_size),
                "LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(rank // each),
                "AUTOTUNE_RENDEZVOUS": str(elsewhere.rendezvous),
            }  # fmt: skip
            local = LocalExecutor(device, partial(self._launch_rank, rank, launcher, added))
            work = partial(self._run_rank, rank, local, place.of_rank(rank).root, timeout)
            self._threads.append(threading.Thread(target=work, name=f"rank{rank}", daemon=True))

    def run(self, on_progress: Callable[[Progress], None] | None) -> list[RankEnded]:
        """Wait for all ranks. Raises what a rank's launch raised; no process is left then either."""
        findings: dict[int, ProbeResult] = {}
        errors: list[BaseException] = []
        started = 0
        give_up: float | None = None
        try:
            for thread in self._threads:
                thread.start()
            while len(findings) + len(errors) < len(self._threads):
                self._end_when_due(give_up)
                if give_up is None and self._elsewhere.failed():
                    give_up = time.monotonic() + GRACE
                try:
                    rank, event = self._events.get(timeout=self._until_due(give_up))
                except queue.Empty:
                    continue
                match event:
                    case _Started():
                        started += 1
                        if started == len(self._threads):
                            self._deadline = time.monotonic() + self._timeout
                    case ProbeResult(answer=answer):
                        findings[rank] = event
                        if give_up is None and not isinstance(answer, Ok):
                            give_up = time.monotonic() + GRACE
                    case BaseException():
                        errors.append(event)
                        self._end()
                    case Progress():
                        if rank == self._elsewhere.first and on_progress is not None:
                            on_progress(event)
        finally:
            with shielded():
                self._end()
                for thread in self._threads:
                    if thread.ident is not None:
                        thread.join()
                os.close(self._cancel)
        if errors:
            raise errors[0]
        return [RankEnded(self._ended(rank, finding.answer), finding) for rank, finding in findings.items()]

    def _ended(self, rank: int, outcome: Outcome | Inspection) -> RankOutcome:
        assert not isinstance(outcome, Inspection), "an inspection has one process"
        report = self._reports[rank]
        if report.answer is None and report.ending is not None and report.ending.stopped:
            if not self._expired:
                return RankOutcome(rank, outcome, stopped=True)
            assert self._deadline is not None
            phase = report.progress.phase if report.progress is not None else "start"
            return RankOutcome(rank, Timeout(phase=phase, seconds=report.ending.seconds), self._deadline)
        return RankOutcome(rank, outcome, report.failing_since())

    def _run_rank(self, rank: int, local: LocalExecutor, folder: Path, timeout: float) -> None:
        def tell(progress: Progress) -> None:
            self._events.put((rank, progress))

        try:
            finding = local.run(self._request, folder, timeout=timeout, on_progress=tell)
            self._events.put((rank, finding))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the probe was asked for
            self._events.put((rank, error))

    def _launch_rank(
        self, rank: int, launcher: Launcher, added: dict[str, str], *where: Any, **options: Any
    ) -> Report:
        def started() -> None:
            self._events.put((rank, _Started()))

        own = {
            "environment": added, "cancel": self._cancel, "timeout": self._timeout + SPARE, "on_start": started,
        }  # fmt: skip
        self._reports[rank] = launcher(*where, **{**options, **own})
        return self._reports[rank]

    def _until_due(self, give_up: float | None) -> float | None:
        """Return the seconds until all are to be ended; None where that is not to come, or is done."""
        due = [moment for moment in (give_up, self._deadline) if moment is not None]
        left = max(0.0, min(due) - time.monotonic()) if due and self._held >= 0 else None
        if len(self._threads) == self._request.world_size:
            return left
        return LOOK if left is None else min(LOOK, left)

    def _end_when_due(self, give_up: float | None) -> None:
        now = time.monotonic()
        if self._held >= 0 and self._deadline is not None and now >= self._deadline:
            self._expired = True
            self._end()
        elif give_up is not None and now >= give_up:
            self._end()

    def _end(self) -> None:
        """Have every rank that still runs stopped by its supervisor."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
