"""Probes of a user's own command on this machine: started under the supervisor, watched from within and without."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import autotune
from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.allocator import VARIABLE as ALLOCATOR
from autotune.devices.device import Device
from autotune.executors.executor import ProbeResult
from autotune.executors.scratch import scratch_folder, temporary
from autotune.outcome import Crash, Ok, Oom, Outcome
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder, write_atomically
from autotune.probe.launch import launch
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.script.command import Rendered, render, with_copies
from autotune.script.measurement import Told, facts, memories
from autotune.script.space import base_of, space_of
from autotune.script.verdict import finished, verdict
from autotune.script.watched import SITE, WatchedLaunch, read_seen
from autotune.site import MachineFacts, Site
from autotune.techniques.check import this_machine
from autotune.training_command import TrainingCommand

RUNNER = Path(autotune.__file__).parent / "script" / "runner.py"
WORKER = (sys.executable, "-I", "-S", str(RUNNER))
MOST_PROOF_STEPS = 64
"""Optimizer steps of a proof, at most: as many as the watch keeps one by one."""
QUIET = {"WANDB_MODE": "disabled", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""Set where the user has not set them: a probe reports to nobody, and writes beside no source file. Empty is not set:
Python writes its bytecode then as well."""


class ScriptExecutor:
    """Runs each request by the command that its model is, over all devices at once."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)
        self._machine: MachineFacts | None = None

    def describe(self) -> Site:
        """Return the first device, and this machine as it was when first asked."""
        self._machine = self._machine or this_machine()
        return Site(device=self._devices[0].facts(), machine=self._machine)

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the environment variables that a probe of this candidate runs under, beside the command's own."""
        variables = dict(self._devices[0].environment(candidate))
        variables.pop(ALLOCATOR, None)  # what the command allocates with is its own affair
        if self._devices[0].facts().kind == "cpu":
            if len(self._devices) > 1:
                variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        else:
            visible = [
                device.environment(candidate).get("CUDA_VISIBLE_DEVICES", "") for device in self._devices
            ]
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        return variables

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes of host memory or disk that each rank's offload may use."""
        return self._devices[0].offload_room(folder, place) // len(self._devices)

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Start the command for the request's candidate, watch it, and judge what it came to.

        An inspection is a first launch at the smallest micro-batch, of one optimizer step; where memory runs out before
        a batch was seen, of what saves more memory. A proof runs the second command too, where there is one.
        """
        command = request.model.command
        assert command is not None, "other models have an executor of their own"
        assert request.kind != "trace", "nothing of a command can be traced"
        launches = _Launches(self, command, request, ProbeFolder(folder), timeout, on_progress)
        for device in self._devices:
            device.prepare()
        if request.kind == "inspect":
            return launches.inspect()
        result = launches.train()
        if request.kind == "prove" and command.evaluation and isinstance(result.answer, Ok):
            return launches.evaluate(result)
        return result

    def start(
        self,
        launches: _Launches,
        rendered: Rendered,
        candidate: Candidate,
        asked: dict[str, Any],
        limit: int | None,
    ) -> tuple[Report, WatchedLaunch, int | None]:
        """Launch one command line to its end; return what was seen, and the peak that the devices saw (bytes)."""
        # Not the probe's own folder: the path of a socket has 107 characters at most, and loader workers make some.
        with scratch_folder((temporary(),)) as short:
            return self._started(launches, rendered, candidate, asked, limit, short)

    def _started(
        self,
        launches: _Launches,
        rendered: Rendered,
        candidate: Candidate,
        asked: dict[str, Any],
        limit: int | None,
        short: Path,
    ) -> tuple[Report, WatchedLaunch, int | None]:
        place, request = launches.place, launches.request
        watch, scratch = place.scratch / "watch", [str(place.root.absolute()), str(short)]
        argv, copies = with_copies(rendered, Path(launches.command.folder), place.scratch / "config")
        own = os.environ.get("PYTHONPATH")
        variables = {
            **{name: value for name, value in QUIET.items() if not os.environ.get(name)},
            **self.environment(candidate), **rendered.env,
            "PYTHONPATH": os.pathsep.join([str(SITE), own] if own else [str(SITE)]), "TMPDIR": str(short),
            "AUTOTUNE_WATCH": str(watch), "AUTOTUNE_WATCH_ASKED": json.dumps({**asked, "scratch": scratch}),
        }  # fmt: skip
        order = {
            "argv": list(argv), "folder": launches.command.folder, "env": variables, "files": copies,
            "folders": [launches.output], "scratch": scratch, "watch": str(watch),
        }  # fmt: skip
        place.root.mkdir(parents=True, exist_ok=True)
        write_atomically(place.root / "order.json", json.dumps(order, indent=2) + "\n")
        with ExitStack() as stack:
            watches = [stack.enter_context(device.watch()) for device in self._devices]
            report = launch(
                request.model_copy(update={"folder": str(place.scratch)}), place, environment={}, data_limit=limit,
                timeout=launches.timeout, on_progress=launches.on_progress, worker=WORKER,
            )  # fmt: skip
        peaks = [one.peak for one in watches if one.peak is not None]
        seen = read_seen(watch)
        launches.note_written(seen)
        return report, seen, max(peaks, default=None)


class _Launches:
    """The launches of one request."""

    def __init__(
        self,
        executor: ScriptExecutor,
        command: TrainingCommand,
        request: ProbeRequest,
        place: ProbeFolder,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.executor = executor
        self.command = command
        self.request = request
        self.place = place
        self.timeout = timeout
        self.on_progress = on_progress
        self.output = str(place.scratch / "output")
        self._devices = executor._devices
        self._written: set[str] = set()

    def note_written(self, seen: WatchedLaunch) -> None:
        """Keep the files that a launch left outside of its scratch folders, by their names in the command's folder."""
        base = os.path.realpath(self.command.folder)
        for path in seen.written:
            if os.path.lexists(path):
                name, real = os.path.relpath(os.path.realpath(path), base), os.path.realpath(path)
                self._written.add(real if name.startswith(os.pardir) else name)

    def inspect(self) -> ProbeResult:
        plain = base_of(self.command, self.request.candidate)
        axes = space_of(self.command).axes
        saving = plain.model_copy(update={axis: values[-1] for axis, values in axes.items()})
        first: ProbeResult | None = None
        for candidate in dict.fromkeys((plain, saving)):
            outcome, seen, report = self._run(candidate, 1, 1, steps=1, seconds=0.0)
            found = facts(seen)
            baseline = max((one.memory.baseline for one in seen.ranks), default=None)
            if found is not None and not isinstance(outcome, Crash):
                return self._result(Inspection(facts=found), report, candidate, baseline)
            first = first or self._result(outcome, report, candidate, baseline)
            if not isinstance(outcome, Oom):
                break
        assert first is not None
        return first  # what saves memory may fail for reasons of its own, which are not why the plain one did

    def train(self) -> ProbeResult:
        request = self.request
        proving = request.kind == "prove"
        steps = request.accumulation_steps if proving else min(2, request.accumulation_steps)
        wanted = MOST_PROOF_STEPS if proving else request.sample_steps + 2
        outcome, seen, report = self._run(
            request.candidate, request.candidate.micro_batch, steps, wanted, request.sample_seconds
        )
        baseline = max((one.memory.baseline for one in seen.ranks), default=None)
        return self._result(outcome, report, request.candidate, baseline)

    def evaluate(self, trained: ProbeResult) -> ProbeResult:
        """Run the second command to its own end; what it came to goes into the proof."""
        assert isinstance(trained.answer, Ok)
        candidate = self.request.candidate
        rendered = render(self.command, candidate, self._numbers(candidate.micro_batch, 1), second=True)
        limit = self._devices[0].data_limit()
        try:
            report, seen, device_peak = self.executor.start(self, rendered, candidate, {"steps": 0}, limit)
        finally:
            self.place.clear_scratch()
        told = self._told(candidate.micro_batch, 1, 0, limit, device_peak)
        if (failed := finished(told, seen, report)) is not None:
            return self._result(failed, report, candidate, trained.baseline)
        own = trained.answer.memory
        larger = max((own, *memories(told, seen)), key=lambda memory: memory.peak())
        memory = own.model_copy(update={"reserved": larger.reserved, "device_peak": larger.device_peak})
        answer = trained.answer.model_copy(update={"memory": memory, "plain_peak": own.peak()})
        both = trained.seconds + report.seconds
        return trained.model_copy(
            update={"answer": answer, "seconds": both, "written": tuple(sorted(self._written))}
        )

    def _run(
        self, candidate: Candidate, micro_batch: int, accumulation: int, steps: int, seconds: float
    ) -> tuple[Outcome, WatchedLaunch, Report]:
        numbers = self._numbers(micro_batch, accumulation)
        limit = self._devices[0].data_limit()
        asked = {"steps": steps, "seconds": seconds, "most_micro_steps": 4 * accumulation + 8}
        try:
            rendered = render(self.command, candidate, numbers)
            report, seen, device_peak = self.executor.start(self, rendered, candidate, asked, limit)
        finally:
            self.place.clear_scratch()
        told = self._told(micro_batch, accumulation, min(steps, 4), limit, device_peak)
        return verdict(told, seen, report), seen, report

    def _told(
        self, micro_batch: int, accumulation: int, steps: int, limit: int | None, device_peak: int | None
    ) -> Told:
        return Told(
            micro_batch=micro_batch, accumulation=accumulation, world=len(self._devices), steps=steps,
            budget=self.request.budget, kind=self._devices[0].facts().kind, data_limit=limit,
            tokens_per_sample=self.request.tokens_per_sample, device_peak=device_peak,
        )  # fmt: skip

    def _numbers(self, micro_batch: int, accumulation: int) -> dict[str, int | str]:
        nodes = self.request.nodes
        return {
            "micro_batch": micro_batch, "accumulation": accumulation, "gpus": len(self._devices) // nodes,
            "nodes": nodes, "total_accumulation": accumulation * len(self._devices),
            "global_batch": micro_batch * accumulation * len(self._devices), "seq_len": self.request.seq_len,
            "seed": self.request.seed, "output": self.output,
        }  # fmt: skip

    def _result(
        self, answer: Outcome | Inspection, report: Report, candidate: Candidate, baseline: int | None
    ) -> ProbeResult:
        return ProbeResult(
            answer=answer, baseline=baseline, seconds=report.seconds,
            leftovers=report.ending.leftovers if report.ending else 0,
            variables=self.executor.environment(candidate), written=tuple(sorted(self._written)),
        )  # fmt: skip
