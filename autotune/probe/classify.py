"""The verdict on a probe: what the worker said, joined with how its processes ended."""

from __future__ import annotations

import signal
from typing import Literal

from autotune.candidate import DeviceKind
from autotune.errors import NoDiskSpace
from autotune.outcome import Crash, Lost, Ok, Oom, Outcome, Phase, Timeout
from autotune.probe.exit import Exit, Report
from autotune.probe.protocol import DiskFull, Inspection, ProbeRequest, Result, TraceAnswer
from autotune.units import format_bytes

NEAR_LIMIT = 0.95
"""Share of the data limit from which a worker that died in native code is taken to have died of a refusal."""

REFUSAL_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTRAP, signal.SIGILL})
"""What kills native code that did not check its malloc, or that aborts when memory is refused."""

FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""What no fault of a program sends: somebody else (a person, a memory daemon, a batch system) ended the worker."""


def classify(
    request: ProbeRequest,
    report: Report,
    *,
    kind: DeviceKind,
    data_limit: int | None = None,
    device_peak: int | None = None,
) -> Outcome:
    """Return what a probe came to. Pure: the same report gives the same verdict.

    The worker's own verdict stands whatever happened to its processes later (but for a crash while importing
    at the very limit, which is Oom). Without one, the supervisor's evidence decides, and never the text on
    standard error, which is only passed on to the person. `device_peak` (bytes) is what the device itself
    saw of the probe (NVML); it corrects the worker's number upwards, because a worker cannot see all that its
    process takes. `data_limit` (bytes) is the enforced RLIMIT_DATA.

    Raises NoDiskSpace where a full disk stopped the worker, from which nothing follows.
    """
    match report.answer:
        case Result(outcome=outcome) if not (
            request.kind in {"inspect", "trace"} and isinstance(outcome, Ok)
        ):
            return _refused_at_start(outcome, report, data_limit) or _with_device_peak(outcome, device_peak)
        case Inspection() if request.kind == "inspect":
            raise AssertionError("an inspection that was answered has no outcome")
        case DiskFull() as full:
            raise _disk_full(full)
        case TraceAnswer() if request.kind == "trace":
            raise AssertionError("a trace that was made has no outcome")
        case None:
            pass
        case other:
            return _crash(
                report, "protocol", f"a request of kind {request.kind!r} was answered by {other.type!r}"
            )

    ending = report.ending
    if ending is None:
        return _lost(
            report, "supervisor", "the supervisor of this probe was killed, so nothing is known of its end"
        )
    if ending.timed_out:
        return Timeout(phase=_phase(report), seconds=ending.seconds)
    if ending.stopped:
        return _lost(
            report,
            "supervisor",
            "the supervisor of this probe was told to end it, by something else than its tuner",
        )
    if ending.halted:
        return _lost(report, "worker", "the worker was stopped (SIGSTOP) by something other than autotune")
    if ending.signal is not None:
        refused = _killed_for_memory(report, ending, kind) or _died_of_refusal(
            report, ending, kind, data_limit
        )
        if refused is None and ending.signal in FROM_OUTSIDE:
            what = f"the worker was ended by {ending.describe()}, by something other than autotune{_uncounted(ending)}"
            return _lost(report, "worker", what)
        return refused or _crash(report, "signal", f"killed by {ending.describe()}")
    if report.violations:
        return _crash(report, "protocol", f"sent what is no message ({report.violations[0]})")
    return _crash(report, "exit", f"ended with {ending.describe()} and without a result")


def _disk_full(answer: DiskFull) -> NoDiskSpace:
    """Return the error for a worker that a full disk stopped: this machine's, and nothing is known of the candidate."""
    asked = "" if answer.needed is None else f", {format_bytes(answer.needed)} were to be written"
    free = "" if answer.free is None else f", {format_bytes(answer.free)} are free"
    doing = "saving a checkpoint" if answer.phase == "save" else f"the phase {answer.phase}"
    return NoDiskSpace(
        f"disk full in {doing}: {answer.where}{asked}{free} ({answer.message}). Nothing follows from that for any "
        "candidate; make room there"
    )


def _killed_for_memory(report: Report, ending: Exit, kind: DeviceKind) -> Oom | None:
    """SIGKILL while the kernel counted an out-of-memory kill in the probe's cgroup."""
    if ending.signal != signal.SIGKILL or not ending.oom_kills:
        return None
    return Oom(
        # On the cpu device the machine's memory is the device's; under CUDA it is the host's.
        where="device" if kind == "cpu" else "host",
        phase=_phase(report),
        message="the kernel killed the probe because the machine (or its cgroup) ran out of memory; "
        f"it held {format_bytes(ending.max_rss)}",
    )


def _died_of_refusal(report: Report, ending: Exit, kind: DeviceKind, data_limit: int | None) -> Oom | None:
    """Return the OOM where a native library died just when the kernel was about to refuse it memory, else None.

    The supervisor's samples are the only evidence: private memory within 5% of the limit during the last quarter
    of a second. The two ways to be wrong do not cost the same. A library's own bug taken for a refusal
    sends the search one rung down, where the bug shows again, far from the limit, and stops the run. A
    refusal taken for a bug would stop the run although a smaller batch trains. So a crash near the limit is
    Oom, and one whose single large request was refused far below the limit remains a Crash: no counter of the
    kernel tells those apart, and a guess would hide real bugs.
    """
    if kind != "cpu" or data_limit is None or ending.signal not in REFUSAL_SIGNALS:
        return None
    if ending.data_recent < NEAR_LIMIT * data_limit:
        return None
    return Oom(
        where="device",
        phase=_phase(report),
        free=max(0, data_limit - ending.data_recent),
        message=f"{ending.describe()} in native code with {format_bytes(ending.data_recent)} of the limit of "
        f"{format_bytes(data_limit)} in use",
    )


def _refused_at_start(outcome: Outcome, report: Report, data_limit: int | None) -> Oom | None:
    """Correct the one verdict that a worker cannot give: memory was refused while it was importing.

    Python then fails in ways that do not name memory (`SystemError: error return without exception set`,
    an ImportError of a shared object). The phase `start` with the limit used up says what it was.
    """
    if not (isinstance(outcome, Crash) and outcome.reason == "exception" and outcome.phase == "start"):
        return None
    ending = report.ending
    if data_limit is None or ending is None or ending.data_recent < NEAR_LIMIT * data_limit:
        return None
    return Oom(
        where="device",
        phase="start",
        free=max(0, data_limit - ending.data_recent),
        message=f"memory ran out while importing, within the limit of {format_bytes(data_limit)}: {outcome.message}",
    )


def counted_until(report: Report) -> float | None:
    """Return until when (`time.monotonic`) the device's memory was the training's; None for as long as it was run."""
    return report.answer.counted_until if isinstance(report.answer, Result) else None


def _with_device_peak(outcome: Outcome, device_peak: int | None) -> Outcome:
    if not isinstance(outcome, Ok) or device_peak is None or device_peak <= outcome.memory.device_peak:
        return outcome
    memory = outcome.memory.model_copy(update={"device_peak": device_peak})
    return outcome.model_copy(update={"memory": memory})


def _crash(report: Report, reason: Literal["signal", "exit", "protocol"], what: str) -> Crash:
    return Crash(
        reason=reason, phase=_phase(report), message=f"the worker {what}", traceback=report.stderr_tail
    )


def _lost(report: Report, cause: Literal["supervisor", "worker"], what: str) -> Lost:
    return Lost(cause=cause, phase=_phase(report), message=what)


def _uncounted(ending: Exit) -> str:
    return " (the kernel counted no out-of-memory kill)" if ending.signal == signal.SIGKILL else ""


def _phase(report: Report) -> Phase:
    return report.progress.phase if report.progress is not None else "start"
