"""How long a run still takes, about: what is shown below its probes while it works, there and by `autotune watch`."""

from __future__ import annotations

from autotune.specs import ABSENT, RunSpec
from autotune.trial import History
from autotune.units import format_counted, format_duration


def time_left(spec: RunSpec, trials: History, ahead: int, elapsed: float = 0.0, proving: bool = False) -> str:
    """Return the time left for the whole run: probes still ahead at the mean of those so far, and the proof.

    `elapsed` are the seconds that what is under way has taken already. Of the finals those of the round under way are
    counted: another follows only if it leaves something open. Empty before anything tells.
    """
    launched = [trial.seconds for trial in trials if trial.seconds]
    unproven = spec.device.kind in ABSENT
    if not launched or (unproven and not ahead):
        return ""
    mean = sum(launched) / len(launched)
    seconds = ahead * mean
    if ahead and not proving:
        seconds -= min(elapsed, mean)
    if (budget := spec.limits.time_budget) is not None:
        seconds = min(seconds, max(0.0, budget - sum(launched)))
    if not unproven:
        seconds += max(0.0, spec.limits.proof_time - (elapsed if proving else 0.0))
    what = f"about {format_counted(ahead, 'more probe')}" if ahead else "the proof"
    return f"({what}, {format_duration(seconds)} left)"
