"""The worker: trains for real in a process of its own, and writes the verdict itself.

`python -m autotune.worker REQUEST RESULT_FD`, or a fork of a server (`autotune.worker.warm`), reads a `ProbeRequest`
and answers over the pipe `RESULT_FD`, which its parent made, with the messages of `autotune.probe.protocol`. Limits
and environment are the parent's to set. Whatever ends a probe ends in a verdict; only native code that dies on the
spot leaves that to the parent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import mmap
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pydantic import BaseModel, ValidationError

from autotune.candidate import Candidate, alike
from autotune.outcome import Crash, Oom, Outcome, Phase, Unsupported
from autotune.probe.protocol import (
    Answer,
    DiskFull,
    Inspection,
    ProbeRequest,
    Progress,
    Result,
    TraceAnswer,
    TracedRung,
    build_validators,
)
from autotune.units import format_bytes
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.process_memory import data_limit, free_data, limit_lifted, own_data
from autotune.worker.measuring.verdict import Circumstances, disk_full, verdict

if TYPE_CHECKING:
    import torch

    from autotune.timeline.timeline import Timeline
    from autotune.worker.measuring.oom_snapshot import CudaWitness
    from autotune.worker.training import Training

RESERVE = 16 * 2**20
"""Bytes kept from the start and released when memory runs out, so that the verdict itself can be written."""

SHORT_SHARE = 8
SHORT_LEAST = 256 * 2**20
"""Memory is short when less is free than an eighth of the budget, or than 256 MiB where that is more."""


def reserved(size: int) -> mmap.mmap:
    """Return so many bytes of private memory, there and not only mapped. Raises MemoryError where they are refused."""
    try:
        # Populated by the kernel in one go: 4096 page faults take four times as long.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    except OSError as error:
        raise MemoryError(f"a reserve of {format_bytes(size)} was refused: {error.strerror}") from error


class Channel:
    """The worker's end of the result pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def send(self, message: BaseModel) -> None:
        """Write one message. Nobody reading means that the probe is no longer wanted: end quietly."""
        data = message.model_dump_json().encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            os._exit(0)

    def progress(self, phase: Phase, step: int) -> None:
        """Say where the probe is."""
        self.send(Progress(phase=phase, step=step))


def main(request_path: str, channel: Channel, probe: type[Probe] | None = None) -> Probe | None:
    """Answer one request, by a `Probe` unless another class is given; return it, None where the request is of no use.

    Who ends the process next keeps it until then, so that the verdict does not wait until its tensors are freed: the
    kernel takes them with the process, in as long.
    """
    try:
        request = ProbeRequest.model_validate_json(Path(request_path).read_bytes())
    except (OSError, ValidationError) as error:
        problem = f"the request cannot be used: {error}"
        crash = Crash(reason="protocol", phase="start", message=problem)
        channel.send(Result(outcome=crash, since=time.monotonic()))
        return None
    asked = (probe or Probe)(request, channel)
    channel.send(asked.answer())
    return asked


class Probe:
    """One request on its way to its answer, with all that the verdict needs when it fails."""

    def __init__(self, request: ProbeRequest, channel: Channel) -> None:
        self._request = request
        self._channel = channel
        self._phases = Phases(channel.progress)
        self._training: Training | None = None
        self._witness: CudaWitness | None = None
        self._reserve: mmap.mmap | None = None

    def answer(self) -> Answer:
        """Run the probe and return its last message. Does not raise."""
        self._phases.enter("start")
        try:
            return self._run()
        except BaseException as error:  # noqa: BLE001 - every ending has a verdict, SystemExit too
            since = time.monotonic()  # before anything that another rank could notice
            self._reserve = None
            outcome = self._judge(error)
            # The frames hold the tensors of the step that failed; the message below needs their memory.
            traceback.clear_frames(error.__traceback__)
            return outcome if isinstance(outcome, DiskFull) else Result(outcome=outcome, since=since)

    def _run(self) -> Answer:
        if self._request.kind == "trace":
            return self._trace()
        self._start()
        if self._request.kind == "inspect":
            from autotune.worker.build.inspect import inspect_model

            facts = inspect_model(self._request, self._phases)
            if not self._request.time_device:
                return Inspection(facts=facts)
            from autotune.worker.measuring.device_speed import time_device

            return Inspection(facts=facts, speed=time_device(self._request.device, self._request.folder))
        from autotune.worker.build.assembly import assemble
        from autotune.worker.measuring.measure import measure
        from autotune.worker.measuring.prove import prove

        self._phases.enter("build")
        self._training = assemble(self._request)
        run = prove if self._request.kind == "prove" else measure
        outcome = run(self._request, self._training, self._phases, self._warmed_up)
        since = time.monotonic()
        self._phases.meter.close()
        self._training.close()
        if self._witness is not None:
            self._witness.discard()
        return Result(outcome=outcome, since=since, counted_until=self._phases.counted_until)

    def _trace(self) -> TraceAnswer:
        """Trace before anything is computed or a device touched: that needs a fresh process."""
        import autotune.worker.tracing.trace  # noqa: F401 - before what is imported is frozen
        from autotune.worker.tracing.fakes.compiler import kept_programs
        from autotune.worker.tracing.shared_training import shared_trainings

        rungs: list[TracedRung] = []

        def tell(candidate: Candidate, timeline: Timeline | str) -> None:
            if isinstance(timeline, str):
                rungs.append(TracedRung(candidate=candidate, reason=timeline))
            else:
                file = Path(self._request.folder) / f"timeline-{len(rungs)}.trace"
                file.write_bytes(timeline.pack())
                rungs.append(TracedRung(candidate=candidate, file=file.name))
            self._channel.send(Progress(phase="start", traced=rungs[-1]))

        donors: dict[Candidate, Timeline] = {}
        # Each trace begins with a collection, which what was imported would make take a sixth of a second.
        gc.collect()
        gc.freeze()
        with kept_programs(), shared_trainings():
            for group in alike((self._request.candidate, *self._request.also)):
                for candidate, timeline in self._traced(group, donors).items():
                    tell(candidate, timeline)
        return TraceAnswer(rungs=tuple(rungs))

    def _traced(
        self, group: Sequence[Candidate], donors: dict[Candidate, Timeline]
    ) -> dict[Candidate, Timeline | str]:
        """Return the timelines of candidates that are alike, or why there is none.

        `donors` has timelines of earlier ones whose optimizers serve others, by the candidate with the plainest passes.
        """
        from autotune.worker.errors import CannotRun, CannotTrace
        from autotune.worker.tracing.trace import trace, trace_alike

        found: dict[Candidate, Timeline | str] = {}
        first, *others = group
        parameters = first.with_plainest_passes()
        for candidate in group:
            request = self._request.alone(candidate)
            try:
                if candidate == first:
                    traced = trace_alike(request, others, donor=donors.get(parameters))
                    donors.setdefault(parameters, traced[first])
                    found |= traced
                elif candidate not in found:
                    found[candidate] = trace(request)
            except (CannotTrace, CannotRun) as error:
                found[candidate] = str(error)
            except Exception as error:
                # What the model's code raises under one technique says nothing of the others.
                outcome = verdict(error, self._circumstances())
                if isinstance(outcome, Unsupported):
                    found[candidate] = outcome.reason
                elif isinstance(outcome, Crash):
                    found[candidate] = f"tracing failed: {outcome.message}"
                else:
                    raise
        return found

    def _start(self) -> None:
        """Import the libraries and start the device, and take the baseline behind all of that.

        Raises OutOfSpace where the libraries alone take more than the budget.
        """
        self._reserve = reserved(RESERVE)
        build_validators()
        limit = data_limit()
        # Native code that is refused memory while it is loaded aborts, or asks again for ever (OpenBLAS): so it is
        # not refused any, and what it took is looked at.
        with limit_lifted():
            device = self._import()
            held = own_data()
        if limit is not None and held > limit:
            from autotune.worker.errors import OutOfSpace

            raise OutOfSpace(
                "device", held, limit,
                f"torch and the other libraries take {format_bytes(held)} before there is any model, of a limit of "
                f"{format_bytes(limit)}",
            )  # fmt: skip
        from autotune.worker.measuring.memory_meter import meter_for

        meter = meter_for(device)  # before anything else touches the GPU: it takes the difference
        self._phases.measure_with(meter)
        if device.type == "cuda":
            import torch

            from autotune.worker.measuring.oom_snapshot import CudaWitness

            torch.cuda.set_device(device)
            self._witness = CudaWitness(device, Path(self._request.folder))
        self._channel.send(Progress(phase="start", baseline=meter.taken))

    def _import(self) -> torch.device:
        """Import what the candidate needs, and start torch's threads; return the device."""
        import torch

        from autotune.worker.model import build_model

        device = torch.device(self._request.device)
        # OpenMP ends the whole process when it cannot start a thread: all start now, while there is room.
        square = torch.ones(512, 512, requires_grad=True)
        (square @ square).sum().backward()
        # The first optimizer imports the compiler: some 70 MiB that are not the model's.
        torch.optim.SGD([square])
        del square
        if self._request.model.source != "function":
            # transformers imports a model's code when it is first built: some 90 MiB that are not the
            # model's.
            build_model(self._request.model, self._request.seq_len, torch.device("meta"))
        if self._request.candidate.engine == "deepspeed":
            with contextlib.suppress(ImportError):  # `assemble` refuses with the reason
                # The engine imports the other two where it starts: torch's compiler and setuptools come with them,
                # some 45 MiB that are not the model's.
                for name in (
                    "deepspeed",
                    "torch.utils.cpp_extension",
                    "deepspeed.runtime.zero.muon.muon_optimizer",
                ):
                    importlib.import_module(name)
        elif self._request.candidate.distributed:
            import autotune.worker.techniques.sharding.fully_sharded
            import autotune.worker.techniques.sharding.replicated  # some 30 MiB that are not the model's

            if self._request.candidate.tensor_parallel > 1:
                import autotune.worker.techniques.sharding.tensor_parallel
        if self._request.candidate.compile != "none":
            import torch._inductor.compile_fx  # some 100 MiB that are not the model's
        # Not the model's either: imported behind the baseline, it made peaks differ by 2 MiB between launches.
        import autotune.worker.build.assembly
        import autotune.worker.measuring.measure
        import autotune.worker.measuring.prove  # noqa: F401

        return device

    def _warmed_up(self) -> None:
        if self._witness is not None:
            self._witness.rest()

    def _judge(self, error: BaseException) -> Outcome | DiskFull:
        phase, folder = self._phases.phase, self._request.folder
        if (full := disk_full(error, phase, folder)) is not None:
            return full
        outcome = verdict(error, self._circumstances())
        if self._witness is not None and not isinstance(outcome, Oom):
            self._witness.discard()
        if isinstance(outcome, Oom) and self._phases.measuring and self._witness is None:
            from autotune.worker.measuring.oom_snapshot import keep_cpu_summary

            keep_cpu_summary(Path(self._request.folder), self._training, self._phases.meter)
        if isinstance(outcome, Oom) and outcome.where == "disk" and self._request.kind == "prove":
            # There was room when the candidate was probed.
            return DiskFull(
                phase=phase,
                where=folder,
                needed=outcome.requested,
                free=outcome.free,
                message=outcome.message,
            )
        return outcome

    def _circumstances(self) -> Circumstances:
        witness = self._witness
        free = self._free()
        short = free is not None and free < max(SHORT_LEAST, self._request.budget // SHORT_SHARE)
        return Circumstances(
            phase=self._phases.phase,
            step=self._phases.step,
            device="cuda" if self._request.device.startswith("cuda") else "cpu",
            free=free,
            short=short,
            requested=witness.requested if witness is not None else None,
            free_at_refusal=witness.free if witness is not None else None,
            stress=self._phases.stress,
        )

    def _free(self) -> int | None:
        """Return what was free on the device when memory was refused, as far as can still be told."""
        if self._request.device == "cpu":
            free = free_data()
            return None if free is None else max(0, free - RESERVE)  # the reserve is free only since
        try:
            return self._phases.meter.free() if self._phases.measuring else None
        except RuntimeError:
            return None  # after an illegal access every call to CUDA fails again: the first is what to judge


def run(request_path: str, descriptor: int) -> NoReturn:
    """Answer one request, and end the process."""
    faulthandler.enable()  # where Python was when native code died, for the person who reads standard error
    _ended = main(request_path, Channel(descriptor))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            # User code may have closed or replaced it.
            stream.flush()
    # The verdict is out: tearing down libraries and devices could only hang, crash, or take time.
    os._exit(0)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
