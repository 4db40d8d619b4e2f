"""Tuners in processes of their own, on executors made of arithmetic, which are disturbed at chosen moments."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil

import autotune.executors.find
import autotune.reporting.document
import autotune.reporting.live
import autotune.run.journal
from autotune import cli
from autotune.candidate import Candidate
from autotune.executors.executor import ProbeResult
from autotune.executors.find import find_executor
from autotune.executors.local import LocalExecutor
from autotune.options import Limits
from autotune.outcome import Lost
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import launch
from autotune.probe.protocol import Inspection, ProbeRequest, Progress, Result
from autotune.run.events import Entry
from autotune.run.folder import create_run
from autotune.run.journal import Journal
from autotune.search.shipped import load_space
from autotune.specs import DeviceFacts, DeviceSpec, Goal, ModelSpec, RunSpec
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.tracing.client import Trace
from autotune.units import MIB
from tests.fakes.executor import ArithmeticExecutor

Kind = Literal["arithmetic", "processes", "real"]
"""What answers requests: arithmetic in the tuner itself, arithmetic in processes under real supervisors, or torch."""

DEVICE = Arithmetic(budget=1000).in_units(16 * MIB)
WORKER = Path(__file__).with_name("fault_worker.py")
TRIAL = "AUTOTUNE_FAULT_TRIAL"
"""Variable in the environment of every process of a trial."""
PATIENCE = 30.0
"""Seconds that processes get to end after their tuner has."""


@dataclass
class Hooks:
    """What is done to a tuner, inside its process: all empty disturb nothing."""

    after_line: Callable[[Entry, int], None] | None = None
    """After a line of the journal was written, with its number in this process, from 0."""
    at_phase: Callable[[ProbeRequest, Path, Progress], None] | None = None
    """When a worker entered a phase."""
    waits_in: Callable[[ProbeRequest, Path], str | None] | None = None
    """Names the phase in which the arithmetic worker of a request waits to be disturbed."""
    daemons: bool = False
    """Whether arithmetic workers leave a daemon behind."""
    setup: Callable[[], None] | None = None
    """Called before the tuner starts."""


class ArithmeticDevice:
    """The device of an arithmetic executor; nothing of it is real but its name."""

    def facts(self) -> DeviceFacts:
        return ArithmeticExecutor(DEVICE).describe().device

    def minimum(self) -> int:
        return 0

    def environment(self, _: Candidate) -> dict[str, str]:
        return {}

    def data_limit(self) -> int | None:
        return None

    def prepare(self, timeout: float = 0.0) -> None:
        pass

    @contextmanager
    def watch(self) -> Iterator[Any]:
        yield Unwatched()

    def offload_room(self, *_: Any) -> int:
        return 1 << 50


class Unwatched:
    peak: int | None = None

    def peak_until(self, _moment: float | None) -> int | None:
        return None


def arithmetic_launch(hooks: Hooks, request: ProbeRequest, folder: ProbeFolder, **options: Any) -> Any:
    """Launch a worker under a real supervisor that says what arithmetic answers."""
    answer = ArithmeticExecutor(DEVICE).run(request, folder.root, timeout=0).answer
    message = answer if isinstance(answer, Inspection) else Result(outcome=answer)
    waits = hooks.waits_in(request, folder.root) if hooks.waits_in else None
    environment = {
        **options["environment"],
        "FAULT_ANSWER": message.model_dump_json(),
        **({"FAULT_PHASE": waits} if waits else {}),
        **({"FAULT_DAEMON": "1"} if hooks.daemons else {}),
    }
    worker = (sys.executable, "-I", "-S", str(WORKER))
    return launch(request, folder, **{**options, "environment": environment}, worker=worker)


class ArithmeticTracer:
    """Hands out the timelines of the arithmetic device."""

    def trace(self, request: ProbeRequest, *_: Any, **__: Any) -> dict[Candidate, Trace]:
        return {
            candidate: Trace(timeline(DEVICE, candidate), seconds=1.0)
            for candidate in (request.candidate, *request.also)
        }


class Disturbed:
    """An executor whose workers' phases the hooks are told of."""

    def __init__(self, inner: Any, hooks: Hooks) -> None:
        self._inner = inner
        self._hooks = hooks
        self.describe = inner.describe
        self.offload_room = inner.offload_room

    def run(
        self, request: ProbeRequest, folder: Path, *, timeout: float, on_progress: Any = None
    ) -> ProbeResult:
        def tell(progress: Progress) -> None:
            if on_progress is not None:
                on_progress(progress)
            if self._hooks.at_phase is not None:
                self._hooks.at_phase(request, folder, progress)

        finding: ProbeResult = self._inner.run(request, folder, timeout=timeout, on_progress=tell)
        return finding


def executor_of(kind: Kind, hooks: Hooks, *found: Any) -> Disturbed:
    """Return what a tuner of this kind runs its probes on."""
    match kind:
        case "arithmetic":
            return Disturbed(ArithmeticExecutor(DEVICE), hooks)
        case "processes":
            return Disturbed(LocalExecutor(ArithmeticDevice(), partial(arithmetic_launch, hooks)), hooks)
        case "real":
            return Disturbed(find_executor(*found), hooks)


def make_run(kind: Kind, parent: Path, predict: bool = True) -> Path:
    """Make the folder of a run that every trial of this kind starts from."""
    goal, limits = Goal(target="6400", seq_len=100, headroom=0.0), Limits(probe_timeout=120)
    model = ModelSpec(name="made", source="config", config={})
    if kind == "real":
        from autotune.models.resolve import resolve

        model = resolve("tiny-gpt2", base=parent)
        goal = Goal(target="256", seq_len=32, headroom=0.05)
        limits = Limits(probe_timeout=240, sample_time=0.2, proof_time=0.5, max_probes=3, speed_tolerance=0.9)
    spec = RunSpec(
        model=model, device=DeviceSpec.parse("cpu:1GiB"), goal=goal, limits=limits, predict=predict,
        space=load_space("basic").model_dump(mode="json"),
    )  # fmt: skip
    return create_run(spec, parent).root


@dataclass
class Tuner:
    """A tuner that ended: its exit code (negative: the signal) and all that it said."""

    code: int
    said: str


def start(root: Path, kind: Kind, hooks: Hooks, mark: str) -> tuple[int, int]:
    """Fork a tuner that resumes the run; return its process id and the reading end of what it says."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, read
    code = 70
    try:
        os.close(read)
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
        os.environ[TRIAL] = mark
        _instrument(kind, hooks)
        if hooks.setup is not None:
            hooks.setup()
        cli.main(["resume", str(root)])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - a fork must never return into the bench
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _instrument(kind: Kind, hooks: Hooks) -> None:
    autotune.executors.find.find_executor = partial(executor_of, kind, hooks)
    if kind != "real":
        autotune.executors.find.find_tracer = lambda *_, **__: ArithmeticTracer()
    append, written = Journal.append, iter(range(10**9))

    def counted(journal: Journal, entry: Entry) -> None:
        append(journal, entry)
        number = next(written)
        if hooks.after_line is not None:
            hooks.after_line(entry, number)

    Journal.append = counted  # type: ignore[method-assign, assignment]


def finish(pid: int, read: int) -> Tuner:
    """Wait for a tuner's end, and return what it came to."""
    said = bytearray()
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([read], [], [], 0.05)
        if ready and (data := os.read(read, 65536)):
            said += data
            continue
        ended, found = os.waitpid(pid, os.WNOHANG)
        status = found if ended else None
        if ready and status is None:
            time.sleep(0.01)
    os.set_blocking(read, False)
    try:
        while data := os.read(read, 65536):
            said += data
    except BlockingIOError:
        pass
    os.close(read)
    return Tuner(os.waitstatus_to_exitcode(status), said.decode(errors="replace"))


def alive(mark: str) -> list[int]:
    """Return every process of a trial that is still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TRIAL) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def remaining(mark: str) -> list[int]:
    """Wait until no process of a trial is left; return those that stay, and end them."""
    until = time.monotonic() + PATIENCE
    while (found := alive(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def tree() -> dict[str, int]:
    """Return the process ids of the probe that runs below this tuner, by their part in it."""
    keeper = psutil.Process().children()[0]
    if "autotune.worker.warm" in keeper.cmdline() and keeper.children():
        # A server, and the keeper that it forked.
        keeper = keeper.children()[0]
    supervisor = keeper.children()[0]
    return {
        "keeper": keeper.pid,
        "supervisor": supervisor.pid,
        "worker": supervisor.children()[0].pid,
        "tuner": os.getpid(),
    }


def is_lost(entry: Entry) -> bool:
    """Tell whether a line says that something outside ended a probe or a proof."""
    return isinstance(getattr(entry, "outcome", None), Lost)
