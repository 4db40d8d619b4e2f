"""How a run ends without a winner: from what was seen to the one error that says so, and what to do next."""

from __future__ import annotations

from autotune.errors import AutotuneError, InputError, ModelError, NothingFits, ProbeError
from autotune.outcome import Crash, Ok, Oom, Outcome, Timeout, Unsupported
from autotune.selection import missing
from autotune.strategies.decision import Done, Scope
from autotune.trial import History, Trial
from autotune.units import format_bytes, format_duration


def inspection_failed(outcome: Outcome, budget: int) -> AutotuneError:
    """Return the error for a model that could not be looked at within `budget` bytes."""
    match outcome:
        case Crash(message=message, reason="exception", traceback=""):  # written for people, and complete
            return ModelError(message)
        case Crash(message=message, traceback=traceback, phase="forward"):
            return ModelError(f"the model was built, but failed on a first batch: {message}", traceback)
        case Crash(message=message, traceback=traceback):
            return ModelError(f"the model cannot be built: {message}", traceback)
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
        case Oom(phase="start"):
            return InputError(
                f"a budget of {format_bytes(budget)} is smaller than what torch and transformers themselves need"
            )
        case Oom(requested=requested):
            wanted = f" ({format_bytes(requested)} were asked for)" if requested else ""
            return NothingFits(f"the model cannot even be built within {format_bytes(budget)}{wanted}")
        case Unsupported(reason=reason):
            return InputError(reason)
        case _:
            return ModelError(f"the model could not be looked at: {outcome.kind}")


def stop_at_crash(trial: Trial, history: History) -> None:
    """Raise ModelError when a probe crashed before anything worked: descending the ladder cannot mend a bug."""
    if isinstance(trial.outcome, Crash) and not any(isinstance(t.outcome, Ok) for t in history):
        raise ModelError(
            f"probe {trial.number} ({trial.candidate.title()}, micro-batch {trial.candidate.micro_batch}) failed in "
            f"{trial.outcome.phase}: {trial.outcome.message}",
            trial.outcome.traceback,
        )


def nothing_fits(history: History, scope: Scope, done: Done) -> NothingFits:
    """Return the error that says what came nearest, and how much is missing."""
    nearest = missing(history, scope)
    if nearest is None:
        return NothingFits(f"no configuration trained: {done.why}")
    trial, lacking = nearest
    amount = f"at least {format_bytes(lacking)} more" if lacking else "more memory"
    spared = f", with {scope.goal.headroom:.0%} kept free as headroom" if scope.goal.headroom else ""
    why = (
        f"nothing fits {format_bytes(scope.budget)}{spared}. The nearest was {trial.candidate.title()} at "
        f"micro-batch {trial.candidate.micro_batch}, which needs {amount}. Give the device more memory, "
        "or choose a smaller model, a shorter --seq-len or --optimizer sgd"
    )
    if done.why.startswith("stopped"):
        why += f". The search was {done.why}: allow more probes to try the rungs below"
    return NothingFits(why)
