"""Probes on this machine, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.device import Device
from autotune.executors.executor import ProbeResult
from autotune.outcome import Outcome
from autotune.probe.classify import classify, counted_until
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.site import MachineFacts, Site
from autotune.techniques.check import this_machine

KEPT = ("memory_summary.txt", "snapshot.pickle")
"""What a worker leaves in its scratch folder for people to read after an OOM."""


def clear(place: ProbeFolder) -> None:
    """Clear a probe's scratch folder, but for what people will want to read."""
    for name in KEPT:
        if (place.scratch / name).exists():
            (place.scratch / name).replace(place.root / name)
    place.clear_scratch()


class LocalExecutor:
    """Runs each request in a fresh process tree on one device of this machine."""

    def __init__(
        self, device: Device, launcher: Launcher = launch, machine: MachineFacts | None = None
    ) -> None:
        """`machine` holds the facts of this machine, where they are known already."""
        self._device = device
        self._launch = launcher
        self._machine = machine

    def describe(self) -> Site:
        """Return the device, and this machine as it was when first asked."""
        self._machine = self._machine or this_machine()
        return Site(device=self._device.facts(), machine=self._machine)

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the environment variables that a probe of this candidate runs under."""
        return self._device.environment(candidate)

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes of host memory or disk that offloading may use."""
        return self._device.offload_room(folder, place)

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Wait for the device, launch, watch, classify, and clean up the scratch folder."""
        place = ProbeFolder(folder)
        request = request.model_copy(update={"folder": str(place.scratch)})
        self._device.prepare()
        limit, variables = self._device.data_limit(), self.environment(request.candidate)
        try:
            with self._device.watch() as watch:
                report = self._launch(
                    request,
                    place,
                    environment=variables,
                    data_limit=limit,
                    timeout=timeout,
                    on_progress=on_progress,
                )
            answer: Outcome | Inspection = (
                report.answer
                if isinstance(report.answer, Inspection)
                else classify(
                    request,
                    report,
                    kind=self._device.facts().kind,
                    data_limit=limit,
                    device_peak=watch.peak_until(counted_until(report)),
                )
            )
        finally:
            clear(place)
        leftovers = report.ending.leftovers if report.ending else 0
        return ProbeResult(
            answer=answer,
            baseline=report.baseline,
            seconds=report.seconds,
            leftovers=leftovers,
            variables=variables,
        )
