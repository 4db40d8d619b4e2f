"""What changed in a night: each cell beside its good nights before. What it decides is in `regression`."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.errors import InputError, nearest
from autotune.printable import quoted
from autotune.results.changes import KINDS, Kind, NightChange, NightComparison, Uncompared
from autotune.results.regression import REMEMBERED, falls, grown, had_room, slower, speed_log, spreads
from autotune.results.row import JUDGED, CellRow
from autotune.results.store import Fit, Store, Verdict
from autotune.results.tables import candidate_digest
from autotune.results.thresholds import Thresholds
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count


def compare_night(
    store: Store, sweep: str, night: str, thresholds: Thresholds, keep: bool = True
) -> NightComparison:
    """Compare each cell of a night with its last good night, and with the median of its last good nights.

    With `keep` the store remembers which cells are good, for the nights to come. Raises InputError where the night is
    not in the store.
    """
    tonight = _night(store, sweep, night)
    found = _compare(
        store, tonight, store.good(sweep, night, thresholds.nights, thresholds.since or ""), thresholds
    )
    if keep:
        regressed: dict[str, list[str]] = defaultdict(list)
        for change in found.regressions:
            regressed[change.cell].append(change.model_dump_json())
        store.judge(
            Verdict(
                sweep=sweep, night=night, cell=row.cell, good=row.state == "proven" and row.cell not in regressed,
                regressions=f"[{','.join(regressed[row.cell])}]",
            )
            for row in tonight
            if row.state in JUDGED
        )  # fmt: skip
    return found


def compare_two(store: Store, sweep: str, before: str, night: str, thresholds: Thresholds) -> NightComparison:
    """Compare each cell of a night with one other night, whatever became of that; nothing is remembered.

    How much nights differ by themselves is told by the good nights before. Raises InputError where one is not there.
    """
    known = {row.cell: row for row in _night(store, sweep, before) if row.winner is not None}
    good = store.good(sweep, night, thresholds.nights, thresholds.since or "")
    tonight = _night(store, sweep, night)
    return _compare(store, tonight, good, thresholds, known)


def regressions(store: Store, sweep: str, night: str, thresholds: Thresholds) -> tuple[NightChange, ...]:
    """Return what regressed in a night, as `compare_night` tells it."""
    return compare_night(store, sweep, night, thresholds).regressions


def _night(store: Store, sweep: str, night: str) -> tuple[CellRow, ...]:
    if rows := store.cells(sweep, [night]):
        return rows
    nights = store.nights(sweep)
    if not nights:
        hint = nearest(sweep, store.sweeps()) if store.sweeps() else "there are none yet"
        raise InputError(f"the store has no sweep {quoted(sweep)}; {hint}", about="sweep")
    raise InputError(f"sweep {sweep} has no night {quoted(night)}; {nearest(night, nights)}", about="night")


def _compare(
    store: Store, tonight: Sequence[CellRow], good: Sequence[CellRow], thresholds: Thresholds,
    only: Mapping[str, CellRow] | None = None,
) -> NightComparison:  # fmt: skip
    """`only` names the one night that each cell is compared with; `good` then only tells of noise."""
    past = {name: list(rows) for name, rows in itertools.groupby(good, lambda row: row.cell)}
    references: dict[str, list[CellRow]] = dict(past)
    if only is not None:
        references = {
            row.cell: [only[row.cell]]
            for row in tonight
            if row.cell in only and only[row.cell].asked == row.asked
        }
    uncompared = []
    for row in tonight:
        if row.state not in JUDGED:
            uncompared.append(
                Uncompared(cell=row.cell, state=row.state, why=row.reason or "it has not ended")
            )
        elif row.cell not in references:
            why = "there is no good night before it that asked for the same"
            uncompared.append(Uncompared(cell=row.cell, state=row.state, why=why))
    judged = [row for row in tonight if row.state in JUDGED and row.cell in references]
    changes: dict[str, list[NightChange]] = defaultdict(list)
    for change in _throughput(store, judged, references, past, thresholds):
        changes[change.cell].append(change)
    for row in judged:
        before = references[row.cell][-1]
        if row.state != "proven":
            kind: Kind = "oom" if row.state == "nothing_fits" else "failed"
            what = f"{row.state.replace('_', ' ')}, where {_title(before)} was proven: {row.reason}"
            changes[row.cell].append(_change(row, before, kind, what))
        elif (told := _other_winner(row, before, thresholds)) is not None:
            changes[row.cell].append(told)
    memory = list(_memory(store, judged, references, thresholds))
    names = store.titles(change.candidate for change in memory)
    for change in memory:
        title = names[change.candidate]
        named = change.model_copy(update={"candidate": title, "what": f"{title}: {change.what}"})
        changes[change.cell].append(named)
    order = list(KINDS)
    return NightComparison(
        sweep=tonight[0].sweep, night=tonight[0].night, thresholds=thresholds, cells=tuple(tonight),
        changes=tuple(
            change for row in tonight for change in sorted(changes[row.cell], key=lambda one: order.index(one.kind))
        ),
        uncompared=tuple(uncompared),
    )  # fmt: skip


def _throughput(
    store: Store, judged: Sequence[CellRow], references: Mapping[str, Sequence[CellRow]],
    past: Mapping[str, Sequence[CellRow]], thresholds: Thresholds,
) -> Iterator[NightChange]:  # fmt: skip
    """Yield a change for each cell whose winner is slower, beyond noise and by as much as is worth telling."""
    proven = [row for row in judged if row.tokens_per_second is not None]
    measured = [row for row in proven if row.environment is None or row.environment.evidence == "measured"]
    histories = {row.cell: past.get(row.cell) or references[row.cell] for row in measured}
    speeds: dict[str, tuple[float, ...]] = {}
    if measured:
        one = measured[0]
        speeds = store.speeds(one.sweep, one.night, REMEMBERED, thresholds.since or "")
    noise = spreads(histories, speeds)
    level = thresholds.false_alarms / (2 * max(1, len(measured)))  # Bonferroni: two comparisons of each cell
    for row in proven:
        before = references[row.cell]
        if row.cell in noise:
            both = falls(row, before, noise[row.cell])
            worst = slower(both, level, thresholds)
            if worst is None:
                continue
            of_all = worst is both[1] and len(before) > 1
            chance: float | None = worst.chance
            was = worst.before
        else:  # predictions and records come out the same every time
            was, chance, of_all = math.exp(speed_log(before[-1])), None, False
        now = math.exp(speed_log(row))
        share = 1 - now / was
        if share <= thresholds.throughput:
            continue
        compared = f"the median of {len(before)} good nights" if of_all else before[-1].night
        seen = f" in {len(row.proofs)} proofs" if len(row.proofs) > 1 else ""
        what = (
            f"{format_count(round(now))} tokens/s{seen}, {share:.1%} less than the {format_count(round(was))} of "
            f"{compared}"
        )
        found = _change(row, before[-1], "throughput", what, was, now)
        yield found.model_copy(
            update={"chance": chance, "nights": len(before) if of_all else 1, "candidate": _title(row)}
        )


def _other_winner(row: CellRow, before: CellRow, thresholds: Thresholds) -> NightChange | None:
    assert row.winner is not None
    assert before.winner is not None
    if row.winner == before.winner:
        return None
    alike = row.winner in before.alternatives or before.winner in row.alternatives
    what = f"{_title(row)} won, and {_title(before)} before"
    what += ", which was not told from it" if alike else ""
    return _change(row, before, "winner", what, regressed=thresholds.winner == "fail" and not alike)


def _memory(
    store: Store,
    judged: Sequence[CellRow],
    references: Mapping[str, Sequence[CellRow]],
    thresholds: Thresholds,
) -> Iterator[NightChange]:
    """Yield what takes more memory, cell by cell: OOM where it fitted, else the peak that has grown most.

    Candidates are named by their digests here. Of one cell all measurements of all its nights are held at a time.
    """
    rows = {row.cell: row for row in judged}
    nights = {row.night for row in judged} | {before.night for name in rows for before in references[name]}
    if not rows:
        return
    wanted = {
        name: {row.night: row, **{before.night: before for before in references[name]}}
        for name, row in rows.items()
    }
    for name, found in itertools.groupby(store.fits(judged[0].sweep, sorted(nights)), lambda fit: fit.cell):
        if name not in rows:
            continue
        by_candidate: dict[tuple[str, bool], dict[str, Fit]] = defaultdict(dict)
        for fit in found:
            if fit.night in wanted[name]:
                by_candidate[fit.candidate, fit.proof][fit.night] = fit
        yield from _of_cell(rows[name], references[name], by_candidate.values(), thresholds)


def _of_cell(
    row: CellRow,
    references: Sequence[CellRow],
    candidates: Iterable[Mapping[str, Fit]],
    thresholds: Thresholds,
) -> Iterator[NightChange]:
    last = references[-1]
    kind = "" if row.environment is None else row.environment.device_kind
    winners = {candidate_digest(one.winner) for one in (row, last) if one.winner is not None}
    refused: list[tuple[bool, NightChange]] = []
    larger: list[tuple[bool, float, NightChange]] = []
    for nights in candidates:
        now = nights.get(row.night)
        before = [nights[one.night] for one in references if one.night in nights]
        if now is None or not before:
            continue
        known = [fit for fit in before if not fit.oom and fit.peak is not None]
        is_winner = now.candidate in winners
        if now.oom:
            newest = nights.get(last.night)
            if newest is not None and not newest.oom:
                budget = row.budget or 0
                what = (
                    f"out of memory, where it took {format_bytes(newest.peak or 0)} of {format_bytes(budget)}"
                )
                room = had_room(newest, budget, thresholds, kind)
                what += "" if room else ", which leaves no more free than nights differ by"
                change = _change(row, last, "oom", what, newest.peak, None, now.candidate, room)
                refused.append((is_winner, change))
        elif known and now.peak is not None:
            peaks = [fit.peak for fit in known if fit.peak is not None]
            reference = grown(peaks, now.peak, thresholds, kind)
            if reference is not None:
                share = now.peak / reference - 1
                of_all = reference != peaks[-1]
                compared = f"the median of {len(peaks)} good nights" if of_all else f"{known[-1].night}"
                what = (
                    f"peak of {format_bytes(now.peak)}, {share:.1%} more than the {format_bytes(reference)} of "
                    f"{compared}"
                )
                change = _change(row, last, "peak", what, reference, now.peak, now.candidate)
                change = change.model_copy(update={"nights": len(peaks) if of_all else 1})
                larger.append((is_winner, share, change))
    for found in (_told([(one, 0.0, change) for one, change in refused]), _told(larger)):
        if found is not None:
            yield found


def _told(found: Sequence[tuple[bool, float, NightChange]]) -> NightChange | None:
    """Return the one that is told of several candidates, with how many more there are.

    A regression goes before what is only told, then the winner's, then the largest.
    """
    if not found:
        return None
    _, _, change = max(found, key=lambda one: (one[2].regressed, *one[:2]))
    others = len({one.candidate for _, _, one in found}) - 1
    if not others:
        return change
    return change.model_copy(update={"what": f"{change.what}; {others} other candidates likewise"})


def _change(
    row: CellRow, before: CellRow, kind: Kind, what: str, was: float | None = None, now: float | None = None,
    candidate: str = "", regressed: bool = True,
) -> NightChange:  # fmt: skip
    return NightChange(
        cell=row.cell, kind=kind, regressed=regressed, what=what, candidate=candidate, before=was, now=now,
        against=before.night, beside=_beside(before, row),
    )  # fmt: skip


def _beside(before: CellRow, row: CellRow) -> tuple[str, ...]:
    """Return what else changed from one night to the other."""
    found = []
    if before.model_digest != row.model_digest:
        found.append("model: another configuration, or another version of its code")
    if before.budget and row.budget and abs(row.budget / before.budget - 1) > 0.001:
        found.append(f"budget: {format_bytes(before.budget)} -> {format_bytes(row.budget)}")
    if before.environment is not None and row.environment is not None:
        found += before.environment.differences(row.environment)
    return tuple(found)


def _title(row: CellRow) -> str:
    return (
        "nothing" if row.winner is None else f"{title_of(row.winner)}, micro-batch {row.winner.micro_batch}"
    )
