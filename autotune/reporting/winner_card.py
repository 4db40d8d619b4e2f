"""The winner at the top of a page: its figures, the arithmetic behind them, its memory, and what its proof checked."""

from __future__ import annotations

from autotune.reporting.arithmetic import TIMES, Sum, Term, sums
from autotune.reporting.drawing import legend
from autotune.reporting.markup import escaped, facts
from autotune.reporting.memory_bar import OF_WINNER, winner_bar, winner_parts
from autotune.reporting.winner import winner_rows
from autotune.run.best import Best, Check
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count, format_duration


def winner_card(best: Best, usable: int) -> list[str]:
    """Return the parts that show a winner; `usable` is what it might have taken (bytes)."""
    memory, candidate = best.memory, best.candidate
    batch, samples = best.accumulation, format_count(candidate.micro_batch)
    size = f"micro-batch {samples} {TIMES} {format_count(batch.tokens_per_sample)} tokens"
    figures = [
        ("Speed", format_count(best.tokens_per_second), "tokens/s",
         f"± {format_count(best.tokens_per_second_interval)}, 95% interval"),
        ("Peak memory", format_bytes(best.peak()), f"of {format_bytes(memory.budget)}",
         f"{format_bytes(best.free())} free ({best.free() / memory.budget:.1%})"),
        ("Global step", format_duration(best.seconds_per_global_step), "",
         f"{format_count(batch.steps)} {TIMES} {samples} samples a device"),
    ]  # fmt: skip
    if best.mfu is not None:
        figures.append(("MFU", f"{best.mfu:.1%}", "", "of the device's peak FLOP/s"))
    tiles = "".join(
        f'<div><dt>{escaped(name)}</dt><dd><span class="value">{escaped(value)}</span> '
        f'<span class="unit">{escaped(unit)}</span><span class="beside">{escaped(beside)}</span></dd></div>'
        for name, value, unit, beside in figures
    )
    return [
        f'<div class="card winner"><p class="name">{escaped(title_of(candidate))}</p>'
        f'<p class="note">{escaped(size)}, {escaped(candidate.optimizer)}, {escaped(best.evidence)}</p>'
        f'<dl class="figures">{tiles}</dl></div>',
        "<h3>Peak memory against the budget</h3>",
        winner_bar(best, usable),
        legend({name: f"{OF_WINNER[name]} {format_bytes(size)}" for name, size in winner_parts(best)}),
        *(part for one in sums(best) for part in _sum(one)),
        "<details><summary>All facts of the winner</summary>",
        facts(winner_rows(best)),
        "</details>",
    ]


def checks_table(best: Best) -> str:
    """Return what the proof compared with what had been recorded."""
    assert best.proof is not None
    rows = "".join(_check(check) for check in best.proof.checks)
    return (
        '<div class="wide" tabindex="0"><table><thead><tr><th scope="col">check</th>'
        '<th scope="col" class="right">recorded</th><th scope="col" class="right">in the proof</th>'
        '<th scope="col">allowed</th><th scope="col">held</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _check(check: Check) -> str:
    show = format_bytes if "peak" in check.name else _plain
    recorded, proven = ("-" if value is None else show(value) for value in (check.recorded, check.proven))
    held = '<span class="good">✓ yes</span>' if check.passed else '<span class="bad">✕ no</span>'
    name = f"{check.name}, at most the budget" if check.name.startswith("peak with") else check.name
    return (
        f'<tr><th scope="row">{escaped(name)}</th><td class="right">{recorded}</td><td class="right">{proven}</td>'
        f"<td>{escaped(_allowed(check, show))}</td><td>{held}</td></tr>"
    )


def _plain(value: float) -> str:
    return format_count(value) if abs(value) >= 1000 else f"{value:.4g}"


def _allowed(check: Check, show: object) -> str:
    if check.tolerance is None:
        return ""
    assert callable(show)
    said = f"{check.tolerance:.0%}"
    if check.floor is not None:
        said += f", or {show(check.floor)}"
    if check.interval is not None:
        said += f" less, and ± {show(check.interval)} of noise"
    return said


def _sum(one: Sum) -> list[str]:
    terms = "".join(
        f'<span class="part"><span class="sign">{sign}</span>{_term(term)}</span>'
        for sign, term in zip(one.signs, one.terms, strict=True)
    )
    said = f'<p class="note">{escaped(one.note)}</p>' if one.note else ""
    return [f'<h3>{escaped(one.title)}</h3><div class="sum">{_term(one.result, "result")}{terms}</div>{said}']


def _term(term: Term, kind: str = "") -> str:
    return f'<span class="term {kind}"><b>{escaped(term.value)}</b><small>{escaped(term.name)}</small></span>'
