"""Two runs side by side: what each was asked for, what won, and by how much that differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from autotune.candidate import Candidate
from autotune.outcome import Oom
from autotune.picture import check_file
from autotune.reporting.columns import Column, FittingTable
from autotune.reporting.drawing import legend, textures
from autotune.reporting.markup import document, escaped, heading, navigation, note, table
from autotune.reporting.memory_bar import NAMES, OF_WINNER, winner_bar, winner_parts
from autotune.reporting.page import write_html
from autotune.reporting.reported import Reported
from autotune.run.best import Best
from autotune.run.paths import RunPaths
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count, format_duration

NONE = "-"


class ComparedRow(NamedTuple):
    """One thing that both runs have, as text."""

    name: str
    before: str
    after: str
    change: str = ""
    """By how much it differs, where that is a number; empty where it does not differ."""


class RunComparison(NamedTuple):
    """Two runs; the first is what the second is held against."""

    before: Reported
    after: Reported

    @classmethod
    def read(cls, before: RunPaths, after: RunPaths) -> RunComparison:
        """Read both. Raises InputError where a file of one cannot be used."""
        return cls(Reported.read(before), Reported.read(after))

    @property
    def asked(self) -> list[ComparedRow]:
        """What the runs were asked for."""
        return [
            _row(name, before, after)
            for (name, before), (_, after) in zip(_asked(self.before), _asked(self.after), strict=True)
        ]

    @property
    def found(self) -> list[ComparedRow]:
        """What won, and what it took to find that."""
        return list(self._found())

    @property
    def environment(self) -> list[ComparedRow]:
        """What differs of the machines and versions; empty where nothing does."""
        one, other = _environment(self.before), _environment(self.after)
        return [
            ComparedRow(name, one.get(name, NONE), other.get(name, NONE), "differs")
            for name in {**one, **other}
            if one.get(name) != other.get(name)
        ]

    @property
    def caveat(self) -> str:
        """Why the speeds of the two say little of each other; empty where they were asked for the same."""
        differ = [
            row.name
            for row in self.asked
            if row.change and row.name in {"model", "device", "devices", "global batch", "sequence length"}
        ]
        return (
            f"The runs differ in {', '.join(differ)}: their speeds are of different work." if differ else ""
        )

    def _found(self) -> Iterator[ComparedRow]:
        one, other = self.before.best, self.after.best
        yield _row("state", _state(self.before), _state(self.after))
        yield _row(
            "configuration", title_of(one.candidate) if one else NONE,
            title_of(other.candidate) if other else NONE,
        )  # fmt: skip
        if one is not None and other is not None:
            yield from _axes(one.candidate, other.candidate)
            yield from _numbers(one, other)
        elif one is not None or other is not None:
            yield ComparedRow("speed", *(NONE if best is None else _speed(best) for best in (one, other)))
            yield ComparedRow(
                "peak memory", *(NONE if best is None else format_bytes(best.peak()) for best in (one, other))
            )  # fmt: skip
        probes = [len(run.record.history) for run in self]
        yield _counted("probes", *probes)
        yield _counted("out of memory", *(_ooms(run) for run in self))
        seconds = [sum(trial.seconds for trial in run.record.history) for run in self]
        yield _measured("time of probes", seconds[0], seconds[1], format_duration, "shorter", "longer")


def print_comparison(found: RunComparison, console: Console) -> None:
    """Print both runs side by side."""
    for title, rows in _parts(found):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(_table(found, rows))
    if found.caveat:
        console.print(Text(f"\n{found.caveat}", style="yellow"))


def comparison_data(found: RunComparison) -> dict[str, Any]:
    """Return the same as plain data, for `--json`."""
    return {
        "runs": [str(run.paths.root) for run in found],
        **{
            name: [row._asdict() for row in rows]
            for name, rows in (
                ("asked", found.asked),
                ("found", found.found),
                ("environment", found.environment),
            )
        },
        "caveat": found.caveat,
    }


def write_comparison(found: RunComparison, file: Path) -> None:
    """Write both as one page. Raises InputError where that cannot be written."""
    check_file("--html", file, (".html",))
    write_html(file, comparison_page(found))


def comparison_page(found: RunComparison) -> str:
    """Return the page's text."""
    title = f"{found.before.paths.id} and {found.after.paths.id}"
    parts = [textures(), f"<h1>{escaped(title)}</h1>"]
    shown: list[tuple[str, str]] = []
    if found.caveat:
        parts.append(f'<p class="absent">{escaped(found.caveat)}</p>')
    for number, (name, rows) in enumerate(_parts(found)):
        parts += [heading(name, f"part-{number}"), table(_table(found, rows))]
        shown.append((f"part-{number}", name))
    bars: list[str] = []
    names = NAMES
    for run in found:
        if run.best is not None and run.context is not None:
            bars += [
                f"<h3>{escaped(run.paths.id)}</h3>",
                winner_bar(run.best, run.context.usable),
            ]
            if "proven" in dict(winner_parts(run.best)):
                names = OF_WINNER
    if bars:
        parts += [heading("Memory of the winners", "memory"), *bars, legend(names)]
        shown.append(("memory", "Memory of the winners"))
    parts.append(note("This page loads nothing from anywhere."))
    return document(f"{title} - autotune", parts, [navigation(shown)], active=True)


def _parts(found: RunComparison) -> list[tuple[str, list[ComparedRow]]]:
    parts = [("What was asked for", found.asked), ("What was found", found.found)]
    if environment := found.environment:
        parts.append(("What differs around them", environment))
    return parts


def _table(found: RunComparison, rows: list[ComparedRow]) -> FittingTable:
    return FittingTable([
        Column("of", [row.name for row in rows], style="dim"),
        Column(f"A: {found.before.paths.id}", [row.before for row in rows], least=18),
        Column(f"B: {found.after.paths.id}", [row.after for row in rows], least=18),
        Column("B beside A", [row.change for row in rows], least=10),
    ])  # fmt: skip


def _asked(run: Reported) -> list[tuple[str, str]]:
    spec, goal = run.spec, run.spec.goal
    return [
        ("model", spec.model.name), ("device", str(spec.device)),
        ("devices", f"{goal.gpus}" + (f" in {goal.nodes} nodes" if goal.nodes > 1 else "")),
        ("global batch", str(goal.target)), ("sequence length", format_count(goal.seq_len)),
        ("headroom", f"{goal.headroom:.0%}"), ("objective", goal.objective.name), ("optimizer", spec.optimizer),
        ("search space", spec.space_name), ("allowed", ", ".join(spec.allow) or "nothing"),
        ("strategy", spec.strategy + ("" if spec.predict else ", without predictions")),
    ]  # fmt: skip


def _axes(one: Candidate, other: Candidate) -> Iterator[ComparedRow]:
    """Yield the axes in which two winners differ."""
    before, after = one.model_dump(mode="json"), other.model_dump(mode="json")
    for name in before:
        if before[name] != after[name]:
            yield _row(name.replace("_", " "), str(before[name]), str(after[name]))


def _numbers(one: Best, other: Best) -> Iterator[ComparedRow]:
    yield _row("accumulation", *(f"{best.accumulation.steps}" for best in (one, other)))
    noise = math.hypot(one.tokens_per_second_interval, other.tokens_per_second_interval)
    share = _share(one.tokens_per_second, other.tokens_per_second, "slower", "faster")
    known = abs(other.tokens_per_second - one.tokens_per_second) > noise
    apart = share if known else f"not distinguishable ({share or 'the same'})"
    yield ComparedRow("speed", _speed(one), _speed(other), apart)
    seconds = [best.seconds_per_global_step for best in (one, other)]
    yield _measured("global step", seconds[0], seconds[1], format_duration, "shorter", "longer")
    peaks = [best.peak() for best in (one, other)]
    yield _measured("peak memory", peaks[0], peaks[1], format_bytes, "less", "more")
    free = [f"{format_bytes(best.free())}" for best in (one, other)]
    yield _row("free at the peak", *free)
    if one.mfu is not None and other.mfu is not None:
        yield _row("MFU", f"{one.mfu:.1%}", f"{other.mfu:.1%}")


def _row(name: str, before: str, after: str) -> ComparedRow:
    return ComparedRow(name, before, after, "" if before == after else "differs")


def _counted(name: str, before: int, after: int) -> ComparedRow:
    return ComparedRow(
        name, format_count(before), format_count(after), "" if before == after else f"{after - before:+d}"
    )


def _measured(
    name: str, before: float, after: float, show: Callable[[float], str], less: str, more: str
) -> ComparedRow:
    return ComparedRow(name, show(before), show(after), _share(before, after, less, more))


def _share(before: float, after: float, less: str, more: str) -> str:
    if not before or before == after:
        return ""
    share = after / before - 1
    return f"{abs(share):.1%} {less if share < 0 else more}"


def _speed(best: Best) -> str:
    return (
        f"{format_count(best.tokens_per_second)} ± {format_count(best.tokens_per_second_interval)} tokens/s"
    )


def _state(run: Reported) -> str:
    if run.best is not None:
        proven = run.best.proof is not None and run.best.proof.passed
        return "proven" if proven else f"{run.best.evidence}, not proven"
    return "no winner" if run.record.decided is not None else "not finished"


def _ooms(run: Reported) -> int:
    return sum(isinstance(trial.outcome, Oom) for trial in run.record.history)


def _environment(run: Reported) -> dict[str, str]:
    site = run.record.opened_at
    if site is None:
        return {}
    driver = {"driver": site.device.driver} if site.device.driver else {}
    return {"device": site.device.name, **driver, **site.machine.environment()}
