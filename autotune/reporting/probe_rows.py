"""Every probe of a run as a row of a page: its memory against the budget, its speed, and what was predicted of both."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.outcome import Drift, Ok, Oom
from autotune.reporting.drawing import legend, number
from autotune.reporting.markup import escaped
from autotune.reporting.memory_bar import NAMES, trial_bar
from autotune.reporting.reported import Reported
from autotune.reporting.tables import why_cell
from autotune.reporting.why_not import WINNER, reasons
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.incumbent import bound_of
from autotune.search.selection import score
from autotune.search.wording import verdict
from autotune.techniques.families import title as title_of
from autotune.trial import Trial
from autotune.units import format_bytes, format_count, format_duration

_WIDE = 200.0
_MANY = 100
"""Probes of which a browser lays out those near the window alone: a picture of the whole page shows fewer whole."""
_KINDS = {"ok": "good", "oom": "bad"}
_MARKS = {"good": "✓", "bad": "✕", "odd": "!"}


@dataclass(frozen=True)
class _Speed:
    """What is known of a trial's speed, in tokens per second."""

    measured: float | None = None
    interval: float = 0.0
    at_most: float | None = None
    predicted: float | None = None

    def largest(self) -> float:
        return max((self.measured or 0.0) + self.interval, self.at_most or 0.0)


def probe_table(run: Reported) -> str:
    """Return the table of all probes, with what finds and sorts them; without scripts it is shown whole."""
    context = run.context
    assert context is not None
    record = run.record
    drift = drift_of(record.history, (*record.rematches, *record.proofs), context)
    finals = {trial.number: trial for trial in run.trials}
    speeds = {
        trial.number: _speed(trial, finals.get(trial.number, trial), context, drift)
        for trial in record.history
    }
    fastest = max((speed.largest() for speed in speeds.values()), default=0.0)
    why = reasons(run)
    ooms = any(isinstance(trial.outcome, Oom) for trial in record.history)
    refused = {"refused": "refused request"} if ooms else {}
    rows = "".join(
        _row(trial, context, speeds[trial.number], fastest, why.get(trial.number, ""))
        for trial in record.history
    )
    heads = (
        ("#", "c1", True), ("Configuration", "c2", False), ("Memory", "c3", True), ("Speed", "c4", True),
        ("Why tried", "c5", False), ("Why not the winner", "c6", False),
    )  # fmt: skip
    head = "".join(
        f'<th scope="col" class="{kind}"{" data-sort" * sorts}>{escaped(title)}</th>'
        for title, kind, sorts in heads
    )
    many = " many" if len(record.history) > _MANY else ""
    return (
        _tools(record.history, context)
        + legend({**NAMES, **refused})
        + '<p class="note">Each bar is the peak of a device; the line across it is the budget'
        + (", the dashed one what may be taken of it" if context.usable < context.budget else "")
        + ". A thin bracket is the predicted peak with its 95% interval.</p>"
        f'<table class="probes{many}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _tools(history: tuple[Trial, ...], context: SearchContext) -> str:
    kinds: dict[str, int] = {}
    for trial in history:
        kinds[_state(trial, context)] = kinds.get(_state(trial, context), 0) + 1
    names = {"good": "fit", "bad": "out of memory", "odd": "others"}
    buttons = '<button type="button" data-kind="" aria-pressed="true">All</button>' + "".join(
        f'<button type="button" data-kind="{kind}" aria-pressed="false">{names[kind]} ({format_count(count)})</button>'
        for kind, count in sorted(kinds.items(), key=lambda pair: list(names).index(pair[0]))
    )
    return (
        '<div class="tools" id="tools" hidden><label for="words">Find</label>'
        f'<input id="words" type="search" placeholder="words of a row">{buttons}'
        '<span class="note" id="shown" role="status"></span></div>'
    )


def _row(trial: Trial, context: SearchContext, speed: _Speed, fastest: float, why: str) -> str:
    candidate, outcome, state = trial.candidate, trial.outcome, _state(trial, context)
    peak = outcome.memory.peak() if isinstance(outcome, Ok) else None
    keys = (
        str(trial.number), "-", str(peak or "-"),
        f"{speed.measured or speed.at_most or 0:.0f}" if speed.largest() else "-", "-", "-",
    )  # fmt: skip
    first = "winner" if why == WINNER else ""
    cells = (
        f'<span class="what">{escaped(title_of(candidate))}</span>'
        f'<span class="small">micro-batch {format_count(candidate.micro_batch)}</span>'
        f'<span class="{state}">{_MARKS[state]} {escaped(verdict(outcome, context))}</span>',
        _memory(trial, context),
        _speed_cell(trial, speed, fastest),
        escaped(why_cell(trial, context.space)),
        "<strong>the winner</strong>" if why == WINNER else escaped(why),
    )
    return (
        f'<tr id="probe-{trial.number}" class="{first}" data-kind="{state}" data-keys="{" ".join(keys)}">'
        f'<td class="c1">{trial.number}</td>'
        + "".join(f'<td><div class="cell">{cell}</div></td>' if cell else "<td></td>" for cell in cells)
        + "</tr>"
    )


def _state(trial: Trial, context: SearchContext) -> str:
    if isinstance(trial.outcome, Ok) and not context.fits(trial.outcome.memory):
        return "bad"
    return _KINDS.get(trial.outcome.kind, "odd")


def _memory(trial: Trial, context: SearchContext) -> str:
    outcome = trial.outcome
    said: list[str] = []
    if isinstance(outcome, Ok):
        peak = outcome.memory.peak()
        share = f"{peak / context.budget:.0%} of the budget"
        said.append(f'<span class="num">{format_bytes(peak)} <span class="note">{share}</span></span>')
    if (foreseen := trial.prediction) is not None:
        error = trial.error()
        off = f" ({error:+.1%})" if error is not None else ""
        width = format_bytes((foreseen.high - foreseen.low) // 2)
        said.append(
            f'<span class="small">predicted {format_bytes(foreseen.peak)} ± {width}{escaped(off)}</span>'
        )
    return f"{trial_bar(trial, context)}{''.join(said)}" if said or trial.outcome.kind == "oom" else "-"


def _speed(trial: Trial, final: Trial, context: SearchContext, drift: Drift) -> _Speed:
    """Return a trial's speed as its rematches and proof leave it, beside what was predicted before the probe."""
    candidate, batches = trial.candidate, context.batches(trial.candidate)
    if not batches.allows(candidate.micro_batch):
        return _Speed()
    predicted = None
    if trial.prediction is not None and trial.prediction.timing is not None:
        batch = batches.accumulation(candidate.micro_batch)
        predicted = batch.effective / trial.prediction.timing.global_step(batch.steps)
    if not isinstance(trial.outcome, Ok):
        return _Speed(predicted=predicted)
    if (bound := bound_of(final, context, drift)) is not None:
        return _Speed(at_most=bound.tokens_per_second, predicted=predicted)
    found = score(final, context, drift)
    return _Speed(found.tokens_per_second, found.interval, predicted=predicted)


def _speed_cell(trial: Trial, speed: _Speed, fastest: float) -> str:
    if not speed.largest():
        said = (
            f'<span class="small">predicted {format_count(speed.predicted)}</span>' if speed.predicted else ""
        )
        return f"-{said}"
    if speed.measured is not None:
        text = f"{format_count(speed.measured)} ± {format_count(speed.interval)}"
    else:
        text = f"≤ {format_count(speed.at_most or 0)}"
    said = f'<span class="num">{text} <span class="note">tokens/s</span></span>'
    if speed.predicted is not None:
        off = f" ({speed.predicted / speed.measured - 1:+.0%})" if speed.measured else ""
        said += f'<span class="small">predicted {format_count(speed.predicted)}{off}</span>'
    if trial.seconds:
        said += f'<span class="small">took {format_duration(trial.seconds)}</span>'
    return _bar(speed, fastest) + said


def _bar(speed: _Speed, fastest: float) -> str:
    """Return a speed as a bar beside the fastest one's, with its interval; open where it is only a bound."""

    def at(value: float) -> float:
        return min(_WIDE, value / fastest * (_WIDE - 4))

    if speed.measured is None:
        drawn = f'<rect class="most" x="1" y="1" width="{number(at(speed.at_most or 0))}" height="7"/>'
    else:
        drawn = f'<rect class="fill" width="{number(at(speed.measured))}" height="9"/>'
        low, high = at(max(0.0, speed.measured - speed.interval)), at(speed.measured + speed.interval)
        drawn += f'<path class="whisker" d="M{number(low)} 4.5H{number(high)}M{number(low)} 1v7M{number(high)} 1v7"/>'
    return (
        f'<svg class="speed" viewBox="0 0 {_WIDE:.0f} 9" preserveAspectRatio="none" aria-hidden="true">'
        f"{drawn}</svg>"
    )
