"""The proof of a configuration: the request that relaunches it, and the judgement of what that showed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from autotune.options import Limits
from autotune.outcome import Crash, Drift, Lost, NonFinite, Ok, Oom, Outcome, Timeout, Unsupported
from autotune.probe.protocol import ProbeRequest
from autotune.run.best import Best, Check, Proof
from autotune.search.comparison import CPU_NOISE
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.finals import after_finals, pairs_of, pooled
from autotune.search.selection import Score, rank, throughput
from autotune.trial import History, ProofFinished, RematchFinished
from autotune.units import format_bytes, format_count, format_counted, format_duration

SPEED = "tokens per second"
"""Name of the check of speed."""
PEAK = "peak memory"
"""Name of the check of the peak: of tensors, or of a command's whole process."""


_FLAGS = {SPEED: "--speed-tolerance", PEAK: "--memory-tolerance"}


def allowing_more(proofs: Iterable[ProofFinished]) -> str:
    """Return in a sentence how what failed may be allowed to differ by more; empty where nothing of that failed."""
    failed = {name for proof in proofs for name in proof.failed}
    flags = [flag for name, flag in _FLAGS.items() if name in failed]
    if not flags:
        return ""
    return f". If the machine was busy with other work, repeat on a quiet one or allow more with {' and '.join(flags)}"


def proof_request(
    best: Best,
    seconds: float,
    device: str | None = None,
    budget: int | None = None,
    energy: bool = False,
) -> ProbeRequest:
    """Return the request that trains from what the file says, for `seconds`: as recorded, then under stress.

    `energy` has the energy of its steps measured.
    """
    command = best.model.command is not None
    return ProbeRequest(
        kind="prove", model=best.model, candidate=best.candidate, seq_len=best.seq_len,
        lengths=best.lengths,
        tokens_per_sample=best.facts.tokens_per_sample if command and best.counts_tokens else None,
        accumulation_steps=_fitting(best, seconds) if command else best.accumulation.steps,
         device=device or best.device.torch_name,
        world_size=best.gpus if best.candidate.distributed else 1,
        nodes=best.nodes if best.candidate.distributed else 1,
        budget=budget or best.memory.budget, headroom=best.headroom,
        seed=best.seed, sample_seconds=seconds, sample_steps=20, folder="",
        evaluation_micro_batch=best.evaluation_micro_batch, energy=energy,
    )  # fmt: skip


def judge(best: Best, outcome: Outcome, seconds: float, limits: Limits, judge_speed: bool = True) -> Proof:
    """Compare what a relaunch showed with what was recorded.

    It must train without any refused allocation and without an allocator retry, its peak must be within
    `limits.memory_tolerance` of the recorded one in either direction (a lower one means that something else
    ran; on the cpu device CPU_NOISE is allowed in any case), its speed must not fall short by more than
    `limits.speed_tolerance` beyond what the intervals of both measurements explain, and its losses must be finite and
    fall. What loads memory more (shuffled lengths, loaded experts, evaluation, checkpoint) is no part of that peak, and
    must fit the budget.
    Of a prediction it only must fit: its peak and speed are shown beside what was predicted, and not judged.
    """
    if isinstance(outcome, Lost):
        return Proof(passed=False, why=f"remains unknown: {outcome.message}", seconds=seconds)
    if not isinstance(outcome, Ok):
        return Proof(passed=False, why=f"did not hold: {_ended(outcome)}", seconds=seconds)
    assert outcome.timing is not None, "a proof has nothing to beat"
    memory, recorded = outcome.memory, best.memory
    predicted = best.evidence == "predicted"
    judge_speed = judge_speed and not predicted
    memory_tolerance = None if predicted else limits.memory_tolerance
    floor = None if predicted or best.device.kind != "cpu" else CPU_NOISE
    _, speed, interval = throughput(outcome.timing, best.accumulation, best.drift)
    noise = math.hypot(interval, best.tokens_per_second_interval)
    if best.model.command is None:
        # Tensors of the training steps: the process's own peak includes evaluation and checkpoint here.
        peaks = memory.allocated, recorded.allocated
    else:  # of a foreign process nothing tells its tensors apart from the rest; its second command is one of its own
        peaks = outcome.plain_peak or memory.peak(), recorded.peak()
    checks = (
        Check(
            name=PEAK,
            recorded=peaks[1],
            proven=peaks[0],
            tolerance=memory_tolerance,
            floor=floor,
            passed=memory_tolerance is None
            or abs(peaks[0] - peaks[1]) <= max(memory_tolerance * peaks[1], floor or 0),
        ),
        Check(
            name=_whole(best),
            recorded=memory.budget,
            proven=memory.peak(),
            tolerance=None,
            passed=memory.peak() <= memory.budget,
        ),
        *(
            Check(
                name=f"peak with {stress.name}", recorded=memory.budget, proven=stress.peak, tolerance=None,
                passed=stress.peak <= memory.budget,
            )
            for stress in outcome.stresses
            if stress.peak is not None
        ),
        Check(
            name="allocator retries", recorded=0, proven=memory.allocator_retries, tolerance=None,
            passed=memory.allocator_retries == 0,
        ),
        Check(
            name=SPEED, recorded=best.tokens_per_second, proven=speed,
            tolerance=limits.speed_tolerance if judge_speed else None,
            interval=noise if judge_speed else None,
            passed=not judge_speed or speed + noise >= best.tokens_per_second * (1 - limits.speed_tolerance),
        ),
        *_falling(best, outcome),
    )  # fmt: skip
    passed = all(check.passed for check in checks)
    return Proof(
        passed=passed, why=_held(best, outcome, speed) if passed else _failed(checks), checks=checks,
        optimizer_steps=outcome.optimizer_steps or len(outcome.losses), micro_steps=outcome.accumulation_steps,
        peak=memory.peak(), plain_peak=outcome.plain_peak, stresses=outcome.stresses,
        losses=outcome.losses, evaluation_loss=outcome.evaluation_loss,
        evaluation_micro_batch=outcome.evaluation_micro_batch,
        checkpoint_bytes=outcome.checkpoint_bytes, seconds=seconds,
    )  # fmt: skip


def _fitting(best: Best, seconds: float) -> int:
    """Return how many micro-steps let four steps of a command, two of them measured, be done in so many seconds."""
    micro_step = max(1e-6, best.timing.micro_step.mean)
    return min(best.accumulation.steps, max(2, int(seconds / 4 / micro_step)))


def _whole(best: Best) -> str:
    """Return what is checked against the budget: all that a proof ran."""
    if best.model.command is None:
        return "peak with evaluation and checkpoint"
    return "peak with the second command" if best.model.command.evaluation else "peak with all steps"


def _falling(best: Best, outcome: Ok) -> tuple[Check, ...]:
    """Return the check of the loss; none for a command, whose data and schedule may have it rise for a while."""
    if best.model.command is not None:
        return ()
    return (
        Check(
            name="loss falls", recorded=outcome.losses[0], proven=outcome.losses[-1], tolerance=None,
            passed=len(outcome.losses) > 1 and outcome.losses[-1] < outcome.losses[0],
        ),
    )  # fmt: skip


def standing(
    history: History,
    proofs: Sequence[ProofFinished],
    context: SearchContext,
    rematches: Sequence[RematchFinished] = (),
) -> tuple[list[Score], Drift]:
    """Return what is still in the running, best first, and the drift between measurements."""
    drift = drift_of(history, (*rematches, *proofs), context)
    running = in_running(history, rematches, proofs)
    return rank(running, context, drift, pairs_of(running, rematches, context)), drift


def in_running(
    history: History, rematches: Sequence[RematchFinished], proofs: Iterable[ProofFinished]
) -> History:
    """Return the trials still in the running, as finals and proofs leave them."""
    return after_proofs(after_finals(history, rematches), proofs)


def after_proofs(history: History, proofs: Iterable[ProofFinished]) -> History:
    """Return the trials still in the running, as their proofs leave them.

    A relaunch is the longer measurement of the two, and no choice among several was made by it: its timing and energy
    replace the probe's, whether it held or was merely slower than it may be. Then the candidate competes with that, for
    one more proof. Where `--proof-time` had it measure for less than probe and finals did, what held is averaged with
    these, by the seconds of each; of a single step nothing tells how far it may be off, so that changes nothing.
    Anything else that failed, or a second failure, ends it. A proof that was lost says nothing either way, but what it
    leaves unproven is no winner.
    """
    of: dict[int, list[ProofFinished]] = {}
    for proof in proofs:
        of.setdefault(proof.number, []).append(proof)
    remaining = []
    for trial in history:
        done = of.get(trial.number, [])
        failed = [proof for proof in done if not proof.passed]
        if len(failed) > 1 or any(proof.failed != (SPEED,) for proof in failed):
            continue
        if done and isinstance(done[-1].outcome, Ok) and isinstance(trial.outcome, Ok):
            outcome = _remeasured(trial.outcome, done[-1].outcome, slower=bool(failed))
            remaining.append(trial.model_copy(update={"outcome": outcome}))
        else:
            remaining.append(trial)
    return tuple(remaining)


def _remeasured(recorded: Ok, proven: Ok, slower: bool) -> Ok:
    """Return what was recorded of a trial, with the timing and the energy that its proof leaves it."""
    before, after = recorded.measured_seconds(), proven.measured_seconds()
    if slower or after >= before or recorded.timing is None or proven.timing is None:
        timing, energy = proven.timing, proven.energy or recorded.energy
    elif proven.timing.optimizer_step.count < 2:
        return recorded
    else:
        timing = pooled((recorded.timing, proven.timing), (before, after))
        energy = recorded.energy or proven.energy
    return recorded.model_copy(update={"timing": timing, "energy": energy})


def _held(best: Best, outcome: Ok, speed: float) -> str:
    expected = ""
    if best.evidence == "predicted":
        tensors = f"{format_bytes(outcome.memory.allocated)} where {format_bytes(best.memory.allocated)} were predicted"
        expected = f"; tensors {tensors}, and {format_count(best.tokens_per_second)} tokens/s"
    if best.model.command is not None:
        beside = "and the second command" if best.model.command.evaluation else "training steps only"
        return (
            f"held when relaunched: {trained(best, outcome)}, {beside}; peak {format_bytes(outcome.memory.peak())}, "
            f"{format_count(speed)} tokens/s"
        )
    most = outcome.evaluation_micro_batch
    larger = "" if most is None or most == best.candidate.micro_batch else f" (micro-batch {most} fits there)"
    return (
        f"held when relaunched: {trained(best, outcome)}, an evaluation{larger} and a checkpoint; "
        f"peak {format_bytes(outcome.memory.peak())}{_peaks(outcome)}, {format_count(speed)} tokens/s, "
        f"loss {outcome.losses[0]:.2f} -> {outcome.losses[-1]:.2f}{expected}"
    )


def trained(best: Best, outcome: Ok) -> str:
    """Return what a proof trained as it was recorded: `40 optimizer steps of 2 of 64 micro-steps`."""
    steps = outcome.optimizer_steps or len(outcome.losses)
    return (
        f"{format_counted(steps, 'optimizer step')} of {format_count(outcome.accumulation_steps)} of "
        f"{format_counted(best.accumulation.steps, 'micro-step')}"
    )


def _peaks(outcome: Ok) -> str:
    """Return what each stress came to beside the other steps, in brackets; empty where there was none."""
    plain = (
        [] if outcome.plain_peak is None else [f"{format_bytes(outcome.plain_peak)} with the longest rows"]
    )
    said = [
        f"without {stress.name}: {stress.skipped}"
        if stress.peak is None
        else f"{format_bytes(stress.peak)} with {stress.name}"
        for stress in outcome.stresses
    ]
    return f" ({'; '.join([*plain, *said])})" if said else ""


def _failed(checks: tuple[Check, ...]) -> str:
    said = []
    for check in checks:
        if check.passed:
            continue
        show = format_bytes if "peak" in check.name else _plain
        recorded, proven = show(check.recorded or 0), show(check.proven or 0)
        match check.name:
            case name if name.startswith("peak with "):
                said.append(f"{check.name} {proven} is more than the budget of {recorded}")
            case "loss falls":
                said.append(f"loss did not fall ({recorded} -> {proven})")
            case "allocator retries":
                said.append(
                    f"the allocator had to flush its cache {format_counted(int(check.proven or 0), 'time')}"
                )
            case _:
                least = "" if check.floor is None else f", or {show(check.floor)}"
                noise = (
                    ""
                    if check.interval is None
                    else f", and {show(check.interval)} that both intervals explain"
                )
                said.append(
                    f"{check.name} {proven} against {recorded} recorded (allowed {check.tolerance:.0%}{least}{noise})"
                )
    return "did not hold: " + "; ".join(said)


def _plain(value: float) -> str:
    return format_count(value) if abs(value) >= 1000 else f"{value:.4g}"


def _ended(outcome: Outcome) -> str:
    match outcome:
        case Oom(phase=phase, stress=stress):
            return f"out of memory in {phase}" + (f" with {stress}" if stress else "")
        case NonFinite(what=what, step=step):
            return f"{what} not finite at step {step}"
        case Timeout(seconds=seconds, message=message):
            return f"no end after {format_duration(seconds)}{message and f': {message}'}"
        case Crash(message=message):
            return message
        case Unsupported(reason=reason):
            return reason
        case _:
            return outcome.kind
