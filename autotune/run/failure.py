"""How a run ends without a winner: from what was seen to the one error that says so, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.errors import AutotuneError, InputError, ModelError, NothingFits, NothingTrained, ProbeError
from autotune.outcome import Crash, Lost, Ok, Oom, Outcome, Timeout, Unsupported
from autotune.run.events import LastVerdict, Offer
from autotune.run.offers import fits, offer_lines
from autotune.run.record import Unknown
from autotune.search.context import SearchContext
from autotune.search.selection import missing
from autotune.search.strategy import Done
from autotune.search.wording import detail, expected, verdict
from autotune.techniques.families import title as title_of
from autotune.trial import TRIES, History, ProofFinished, Trial
from autotune.units import format_bytes, format_duration


def inspection_failed(outcome: Outcome, budget: int) -> AutotuneError:
    """Return the error for a model that could not be looked at within `budget` bytes."""
    match outcome:
        case (
            Crash(message=message, reason="command")
            | Crash(message=message, reason="exception", traceback="")
        ):
            return ModelError(message)  # written for people, and complete
        case Crash(message=message, traceback=traceback, phase="forward"):
            return ModelError(f"the model was built, but failed on a first batch: {message}", traceback)
        case Crash(message=message, traceback=traceback):
            return ModelError(f"the model cannot be built: {message}", traceback)
        case Timeout(seconds=seconds, message=message) if message:
            return ModelError(
                f"a first launch of the command came to no end within {format_duration(seconds)} (--probe-timeout): "
                f"{message}"
            )
        case Timeout(phase="start", seconds=seconds):
            return ProbeError(
                f"torch and transformers were not imported within {format_duration(seconds)} (--probe-timeout); "
                "on a slow disk or a busy machine allow more with --probe-timeout"
            )
        case Timeout(phase=phase, seconds=seconds):
            doing = "its forward on a first batch" if phase == "forward" else "building it"
            return ModelError(
                f"looking at the model came to no end: {doing} was cut off after {format_duration(seconds)} "
                "(--probe-timeout). If that is how long it takes, allow more with --probe-timeout, else see "
                "what the function waits for"
            )
        case Oom(phase="start", requested=requested):
            held = f": {format_bytes(requested)} before there is any model" if requested else ""
            return InputError(
                f"a budget of {format_bytes(budget)} is smaller than what torch and the other libraries themselves "
                f"need{held}; give more, such as --device cpu:3GiB"
            )
        case Oom(requested=requested):
            wanted = f" ({format_bytes(requested)} were asked for)" if requested else ""
            return NothingFits(f"the model cannot even be built within {format_bytes(budget)}{wanted}")
        case Unsupported(reason=reason):
            return InputError(reason)
        case Lost(message=message):
            return ProbeError(f"the model could not be looked at, {TRIES} times: {message}")
        case _:
            return ModelError(f"the model could not be looked at: {outcome.kind}")


def lost_with_tuner(work: str) -> Lost:
    """Return the verdict on a probe or a proof that was under way each time that its tuner was killed."""
    return Lost(
        cause="tuner", phase="start",
        message=f"autotune itself was killed {TRIES} times while this {work} was under way",
    )  # fmt: skip


def holes(unknown: Sequence[Unknown]) -> str:
    """Return in one sentence what a search does not know, and how to try it again; empty if there is nothing."""
    if not unknown:
        return ""
    many = "candidates" if len(unknown) > 1 else "candidate"
    return (
        f"the search has a hole: {len(unknown)} {many} remain unknown, ended from outside each time "
        f"({'; '.join(entry.title for entry in unknown)}); `autotune resume --retry-lost` tries again"
    )


def stop_at_crash(verdicts: History) -> None:
    """Raise ModelError where a probe crashed in a way that no other candidate mends; a resumed run is told the same.

    `verdicts` are the trials in the order in which they ended: one that was lost is tried again behind others. So it is
    before anything worked, and where Python code raised an exception at a larger micro-batch of a rung that trained at
    a smaller one: the rung's techniques work, so it is the model, its batches, or a library at that size. A technique
    whose own first probe crashes beside others that work is left to the graph, and so is native code that died at a
    larger size, which may have been refused memory.
    """
    for place, trial in enumerate(verdicts):
        if not isinstance(trial.outcome, Crash):
            continue
        if not any(isinstance(earlier.outcome, Ok) for earlier in verdicts[:place]):
            raise ModelError(_crashed(trial), trial.outcome.traceback)
        size = _trained_below(trial, verdicts)
        if size is not None and trial.outcome.reason in {"exception", "command"}:
            raise ModelError(
                f"{_crashed(trial)}. Micro-batch {size} trained, so memory and techniques are not to blame: mend what "
                "fails at the larger size, in the model, in what makes its batches, or in the data, and start a new "
                f"run. Below a library's limit stays a search space with `grow: {{largest: {size}}}` (--space)",
                trial.outcome.traceback,
            )


def proofs_crashed(proofs: Sequence[ProofFinished]) -> ModelError | None:
    """Return the error for proofs that all ended in an exception of Python code; None where any ended otherwise."""
    crashes = [
        (proof.number, proof.outcome)
        for proof in proofs
        if isinstance(proof.outcome, Crash) and proof.outcome.reason == "exception"
    ]
    if not crashes or len(crashes) < len(proofs):
        return None
    number, crash = crashes[0]
    return ModelError(
        f"every configuration that trained failed when it was relaunched, first probe {number} in {crash.phase}: "
        f"{crash.message}. A proof also evaluates and saves a checkpoint: mend what fails there and start a new run",
        crash.traceback,
    )


def _crashed(trial: Trial) -> str:
    assert isinstance(trial.outcome, Crash)
    return (
        f"probe {trial.number} ({title_of(trial.candidate)}, micro-batch {trial.candidate.micro_batch}) failed in "
        f"{trial.outcome.phase}: {trial.outcome.message}"
    )


def _trained_below(trial: Trial, history: History) -> int | None:
    """Return the largest micro-batch below a trial's at which its rung trained."""
    rung, size = trial.candidate.rung(), trial.candidate.micro_batch
    return max(
        (
            other.candidate.micro_batch
            for other in history
            if isinstance(other.outcome, Ok) and other.candidate.rung() == rung
            and other.candidate.micro_batch < size
        ),
        default=None,
    )  # fmt: skip


def no_winner(
    history: History,
    context: SearchContext,
    done: Done,
    unknown: Sequence[Unknown] = (),
    offers: Sequence[Offer] = (),
    along_graph: bool = False,
) -> tuple[NothingFits | NothingTrained, tuple[LastVerdict, ...]]:
    """Return the error for a search that found nothing to prove, and how each rung ended.

    Nothing fits where only memory was lacking: then it says what came nearest, and how much is missing. Where a rung
    ended in anything else (a loss that is not finite, a deadline), more memory may not help. What is `unknown` is told,
    and what would fit by consent alone: the `offers`. A search `along_graph` tried no other rungs of its space.
    """
    causes = last_verdicts(history, context, done)
    lines = tuple(
        f"{title_of(cause.candidate)}, micro-batch {cause.candidate.micro_batch}: {cause.why}"
        for cause in causes
    )
    hole = f". But {holes(unknown)}" if unknown else ""
    hints = offer_lines(offers, context)
    fitting = [offer.name for offer in offers if fits(offer, context)]
    nearest = missing(history, context)
    if nearest is None or any(cause.verdict in _NOT_MEMORY for cause in causes):
        why = f"no configuration trained: {_over(done)}{hole}"
        return NothingTrained(why, lines, hints, fitting), causes
    trial, lacking = nearest
    amount = f"at least {format_bytes(lacking)} more" if lacking else "more memory"
    spared = f", with {context.goal.headroom:.0%} kept free as headroom" if context.goal.headroom else ""
    why = (
        f"nothing fits {format_bytes(context.budget)}{spared}. The nearest was {title_of(trial.candidate)} at "
        f"micro-batch {trial.candidate.micro_batch}, which needs {amount}. Give the device more memory, "
        f"or choose a smaller model or {_shorter(context)}"
    )
    known = {cause.candidate.rung() for cause in causes} | context.refused
    beside = sum(rung not in known for rung in context.ladder.rungs)
    if along_graph and beside:
        why += (
            f". Not tried are {beside} rungs of the space that its graph does not lead to: --strategy guided, the "
            "default, looks among these too"
        )
    if done.reason in _LIMITS:
        why += f". The search was {done.why}: allow more probes to try the rungs below"
    return NothingFits(why + hole, lines, hints, fitting), causes


def _shorter(context: SearchContext) -> str:
    """Return what makes sequences shorter: of a command, its own program."""
    commanded = context.source is not None and context.source.command is not None
    return "shorter sequences in its program" if commanded else "a shorter --seq-len"


def last_verdicts(history: History, context: SearchContext, done: Done) -> tuple[LastVerdict, ...]:
    """Return how each rung ended, in the order in which they were come to: its last trial, or a prediction."""
    causes = {
        skip.candidate.rung(): LastVerdict(
            candidate=skip.candidate,
            verdict="passed over",
            why=f"predicted to take {expected(skip.prediction)}",
        )
        for skip in done.skipped
    }
    trials = {trial.candidate.rung(): trial for trial in history}
    for rung, trial in trials.items():
        behind = _short(detail(trial.outcome))
        said = verdict(trial.outcome, context) + (f": {behind}" if behind else "")
        causes[rung] = LastVerdict(candidate=trial.candidate, verdict=trial.outcome.kind, why=said)
    rungs = dict.fromkeys((*trials, *causes))
    return tuple(causes[rung] for rung in rungs)


_NOT_MEMORY = frozenset({"non_finite", "timeout", "crash", "lost"})
_LIMITS = frozenset({"max_probes", "time_budget"})
_LONGEST = 300
"""Characters of what stands behind a verdict: exceptions of other people's code have no end."""


def _over(done: Done) -> str:
    """Return in words what ended the search."""
    match done.reason:
        case "exhausted" | "settled":
            return "every rung of the search space ended without"
        case "max_probes" | "time_budget":
            return f"the search was {done.why}; allow more to try the rungs below"
        case "crashed":
            return done.why


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
