"""From what was watched of a user's command to the one verdict on a probe of it. Pure."""

from __future__ import annotations

import math
import signal
import statistics
from collections.abc import Sequence

from autotune.outcome import Crash, Lost, NonFinite, Oom, Outcome, Phase, Timeout
from autotune.probe.classify import FROM_OUTSIDE, NEAR_LIMIT, REFUSAL_SIGNALS
from autotune.probe.exit import Report
from autotune.script.measurement import Told, trained
from autotune.script.watched import Watched, WatchedLaunch
from autotune.units import format_bytes, format_counted

NEVER_STEPS = (
    "If it updates its weights without a torch optimizer, call `autotune.report_step()` after each update; if it "
    "starts Python with -I or -E, start it as `python -m autotune.watch script.py`"
)


def verdict(told: Told, seen: WatchedLaunch, report: Report) -> Outcome:
    """Return what a probe of the command came to."""
    return (
        _refused(told, seen, report)
        or _ended_outside(seen, report)
        or _failed(told, seen, report)
        or _otherwise(told, seen, report)
        or _finite(seen.ranks)
        or trained(told, seen)
    )


def finished(told: Told, seen: WatchedLaunch, report: Report) -> Outcome | None:
    """Return how a second command failed, which trains nothing that is measured; None where it ended well."""
    failed = _refused(told, seen, report) or _ended_outside(seen, report) or _failed(told, seen, report)
    if failed is None and seen.end is not None and seen.end.hung:
        return Timeout(
            phase="evaluation", seconds=seen.end.seconds, message="the second command hung at its exit"
        )
    return failed


def _refused(told: Told, seen: WatchedLaunch, report: Report) -> Oom | None:
    """Memory first: no other rank's end refuses an allocation."""
    several = told.world > 1
    for one in seen.processes:
        rank = one.rank if several else None
        head = f"rank {one.rank}: " if several else ""
        if one.error is not None and one.error.refused:
            error = one.error
            return Oom(
                phase=error.phase,
                requested=error.requested,
                free=error.free,
                message=f"{head}{error.message}",
                rank=rank,
            )
        if one.ooms and one.ended != "exception":
            first = one.ooms[0]
            if one.ended == "refused":
                return Oom(
                    phase=first.phase, requested=first.requested, free=first.free, rank=rank,
                    message=f"{head}{first.message}",
                )  # fmt: skip
            how = "changed what it trains and went on" if one.ended == "swallowed_oom" else "went on"
            return Oom(
                phase=first.phase, requested=first.requested, free=first.free, rank=rank,
                message=f"{head}memory was refused in {first.phase} of optimizer step {first.step}, and the command "
                f"caught that, {how}: {first.message}",
            )  # fmt: skip
        if one.memory.cuda is not None and one.memory.cuda.ooms:
            return Oom(
                phase="forward", rank=rank,
                message=f"{head}the allocator counted {format_counted(one.memory.cuda.ooms, 'refused request')}, and "
                "the command caught what was raised",
            )  # fmt: skip
    return _killed(told, seen, report)


def _killed(told: Told, seen: WatchedLaunch, report: Report) -> Oom | None:
    ending, phase = report.ending, _phase(seen, report)
    if ending is None or seen.end is None:
        return None
    by = seen.end.signal
    if ending.oom_kills and (by == signal.SIGKILL or seen.end.exit_code not in {0, None}):
        where = "device" if told.kind == "cpu" else "host"
        message = (
            "the kernel killed a process of the probe because the machine (or its cgroup) ran out of memory"
        )
        return Oom(where=where, phase=phase, message=message)
    if told.kind != "cpu" or told.data_limit is None:
        return None
    said = {one.pid for one in seen.processes}
    for pid, data in seen.end.data.items():
        if data.recent < NEAR_LIMIT * told.data_limit:
            continue
        # It died at the limit without a word, or of an error that names no memory while it was importing.
        crashed = by in REFUSAL_SIGNALS or seen.end.exit_code not in {0, None}
        importing = any(
            one.pid == int(pid) and one.error and one.error.phase == "start" for one in seen.processes
        )
        if crashed and (int(pid) not in said or importing):
            return Oom(
                phase=phase, free=max(0, told.data_limit - data.recent),
                message=f"a process of the command died with {format_bytes(data.recent)} of the limit of "
                f"{format_bytes(told.data_limit)} in use",
            )  # fmt: skip
    return None


def _ended_outside(seen: WatchedLaunch, report: Report) -> Outcome | None:
    ending, phase = report.ending, _phase(seen, report)
    if ending is None:
        return Lost(cause="supervisor", phase=phase, message="the supervisor of this probe was killed")
    if ending.timed_out:
        return Timeout(phase=phase, seconds=ending.seconds, message=_unending(report))
    if ending.stopped or ending.halted:
        how = "stopped (SIGSTOP)" if ending.halted else "told to end"
        return Lost(
            cause="supervisor", phase=phase, message=f"the probe was {how} by something other than autotune"
        )
    if seen.end is None:
        return Lost(
            cause="worker", phase=phase, message=f"what runs the command was ended by {ending.describe()}"
        )
    if seen.end.signal in FROM_OUTSIDE and not any(one.error for one in seen.processes):
        name = signal.Signals(seen.end.signal or 0).name
        return Lost(
            cause="worker", phase=phase, message=f"the command was ended by {name}, sent by something else"
        )
    return None


def _unending(report: Report) -> str:
    """Return why a command may have come to no end, as far as the watch tells."""
    step = report.progress.step if report.progress is not None else 0
    if step:
        return f"it was in optimizer step {step + 1}; allow more with --probe-timeout if that is how long steps take"
    if report.progress is not None and report.progress.phase in {"forward", "backward"}:
        return f"it went through forward passes, and no optimizer step was seen. {NEVER_STEPS}"
    return "no forward pass under grad was seen: it was loading, or trains without torch"


def _failed(told: Told, seen: WatchedLaunch, report: Report) -> Crash | None:
    """Return the exception that explains the others: the one that came first."""
    assert seen.end is not None
    if seen.end.failed:
        return Crash(reason="exit", phase="start", message=seen.end.failed)
    raised = sorted((one for one in seen.processes if one.error is not None), key=lambda one: one.since)
    if raised and (seen.end.exit_code != 0 or raised[0].trains):
        first = raised[0]
        assert first.error is not None
        head = f"rank {first.rank}: " if told.world > 1 else ""
        said = first.error.message.splitlines()[0] if first.error.message else ""
        return Crash(
            reason="exception", phase=first.error.phase, traceback=first.error.traceback,
            message=f"{head}{first.error.kind}: {said}" if said else f"{head}{first.error.kind}",
        )  # fmt: skip
    if seen.end.signal is not None:
        name = signal.Signals(seen.end.signal).name
        return Crash(
            reason="signal", phase=_phase(seen, report), message=f"the command was killed by {name}",
            traceback=report.stderr_tail,
        )  # fmt: skip
    if seen.end.exit_code not in {0, None}:
        return Crash(
            reason="exit", phase=_phase(seen, report), traceback=report.stderr_tail,
            message=f"the command ended with exit code {seen.end.exit_code} before its training was measured",
        )  # fmt: skip
    return None


def _otherwise(told: Told, seen: WatchedLaunch, report: Report) -> Outcome | None:
    """Return how the command did something else than it was asked, or None."""
    assert seen.end is not None

    def crash(message: str) -> Crash:
        return Crash(reason="command", phase=_phase(seen, report), message=message)

    ranks = seen.ranks
    if not ranks:
        started = any(one.torch for one in seen.processes)
        what = "no module was called under grad" if started else "no process that imports torch was seen"
        return crash(f"the command ended, and {what}: nothing trained. {NEVER_STEPS}")
    unstepped = next((one for one in ranks if not one.steps), None)
    if unstepped is not None:
        passes = "one forward pass" if len(unstepped.open) == 1 else f"{len(unstepped.open)} forward passes"
        return crash(f"{passes} under grad, and no optimizer step was seen. {NEVER_STEPS}")
    if any(one.ended == "no_step" for one in ranks):
        most = max(len(one.open) for one in ranks)
        return crash(
            f"{most} micro-steps went by without an optimizer step, and {told.accumulation} were asked for: what is "
            "told of the accumulation does not reach the training"
        )
    if len(ranks) != told.world:
        return crash(
            f"{len(ranks)} process{'es' * (len(ranks) > 1)} trained, and {told.world} were asked for (--gpus): does "
            "the command pass {gpus} to its launcher?"
        )
    fewest = min(one.steps for one in ranks)
    if fewest < told.steps:
        if seen.end.hung:
            steps = format_counted(fewest, "optimizer step")
            said = f"the training ended after {steps}, and the command hung at its exit"
            return Timeout(phase="optimizer", seconds=seen.end.seconds, message=said)
        return crash(
            f"the training ended by itself after {format_counted(fewest, 'optimizer step')}, and a probe needs "
            f"{told.steps}: give it more data or a later end"
        )
    return _batch_differs(told, ranks, crash)


def _batch_differs(told: Told, ranks: Sequence[Watched], crash: object) -> Crash | None:
    assert callable(crash)
    steps = [step for one in ranks for step in one.records]
    micro_steps = statistics.mode([step.micro_steps for step in steps])
    samples = statistics.mode([step.samples for step in steps])
    uneven = len({(step.micro_steps, step.samples) for step in steps}) > 1
    found: Crash
    if micro_steps != told.accumulation:
        found = crash(
            f"each optimizer step took {format_counted(micro_steps, 'micro-step')}, and {told.accumulation} were asked "
            "for: what is told of the accumulation does not reach the training (an environment variable, such as "
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS, may go before it)"
        )
        return found
    if samples != told.micro_batch * told.accumulation:
        each = samples / micro_steps
        found = crash(
            f"each micro-step took {each:g} samples on a device, and {told.micro_batch} were asked for: what is told "
            "of the micro-batch does not reach the training"
            + ("; batches also differ from step to step" if uneven else "")
        )
        return found
    expected = told.tokens_per_sample
    rows = {step.tokens / step.samples for step in steps if step.whole_numbers and step.samples}
    if expected is not None and rows and max(abs(row - expected) for row in rows) > 0.01 * expected:
        found = crash(
            f"rows hold {min(rows):g} to {max(rows):g} tokens, and {expected} were counted for each: have all batches "
            "padded or packed to one length, or give the global batch in samples (--target-global-batch '512 samples')"
        )
        return found
    return None


def _finite(ranks: Sequence[Watched]) -> NonFinite | None:
    for number, step in enumerate(ranks[0].records, start=1):
        if step.loss is not None and not math.isfinite(step.loss):
            return NonFinite(phase="forward", step=number, what="loss")
    return None


def _phase(seen: WatchedLaunch, report: Report) -> Phase:
    failed = next((one.error.phase for one in seen.processes if one.error is not None), None)
    return failed or (report.progress.phase if report.progress is not None else "start")
