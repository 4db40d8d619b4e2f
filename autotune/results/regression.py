"""What a night shows beyond noise, beside the good nights before it. Pure.

Steps of one night share whatever the machine was like that night (its clock, its neighbours, where memory came to lie),
so their spread says nothing of another night: a two-sample test on them gives alarms without end
(`benchmarks/regression_power.py`). What tells of it is how nights without a regression differed. One cell has few of
them, so their variance is moderated by that of the other cells on the same hardware, as Smyth does for genes (Linear
models and empirical Bayes methods for assessing differential expression, 2004): a t test with more degrees of freedom.

A part of that variance is of the single measurement (who else used the machine in that minute), and a part of the whole
night (its driver, its clock, its temperature). A night that seems slower is measured again before it says so
(`suspected`): what was the minute's is gone from the mean of several proofs, what is the night's stays. A minute that
lasts for several proofs pulls their mean down all the same. But what else runs on a machine only ever slows it, so the
fastest of the proofs must be slower too, by what is worth telling: one that is as fast as ever clears the night.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.confidence import t_quantile
from autotune.results.moderated import pooled, quantile, upper_tail
from autotune.results.row import CellRow
from autotune.results.store import Fit
from autotune.results.thresholds import Thresholds
from autotune.search.comparison import CPU_NOISE
from autotune.search.drift import FLOOR, PRIOR_WEIGHT

LEAST = (FLOOR / t_quantile(PRIOR_WEIGHT)) ** 2
"""Variance between nights (of the logarithm of the speed) that is assumed at the least: that of `search.drift` between
measurements of one run. Nights cannot differ by less."""
NORMAL = 1.959964
"""Half-width of a normal's 95% interval in standard deviations."""
_MEDIAN = (1.0, 0.5, 0.4487, 0.2982, 0.2868, 0.2147, 0.2104)
"""Variance of the median of 1 to 7 draws of a normal, in units of its own (Teichroew, Tables of expected values of
order statistics, 1956); from there on the limit pi / 2n, which is too large by a few per cent."""

REMEMBERED = 30
"""Good nights of a cell that tell how nights differ, at most."""
SUSPECTED = 0.05
"""Chance of a fall below which a winner is proven again before the night says that it is slower."""
PROOFS = 5
"""Of such a winner, the first included, at most."""
OF_THE_NIGHT = 0.25
"""Share of the variance between nights that several proofs of one night are taken to have in common, at the least: of
it alone a few proofs in a row cannot tell. An assumption."""


@dataclass(frozen=True)
class Spread:
    """How much nights of one cell differ where nothing changed."""

    variance: float
    """Of the logarithm of its speed."""
    degrees: float
    """Degrees of freedom that this is known with."""


@dataclass(frozen=True)
class Fall:
    """By how much tonight is slower than what it is compared with, and how sure that is."""

    share: float
    """Of the speed before, that the mean of tonight's proofs has lost."""
    share_of_fastest: float
    """The same for the fastest of them; negative where that is faster than before."""
    chance: float
    """Of at least that fall in a night without a change (the p-value)."""
    before: float
    """Tokens per second that it is compared with."""


def spreads(
    histories: Mapping[str, Sequence[CellRow]], speeds: Mapping[str, Sequence[float]] | None = None
) -> dict[str, Spread]:
    """Return, by cell, how much its nights differ; the oldest first in each history, which is measured and not empty.

    `speeds` are the tokens per second of more nights than those: the more there are, the surer a smaller fall is.

    With one or two cells of several nights on the same hardware there is nothing to learn from others: then the prior
    is what runs tell of their own drift, LEAST at the least, and worth PRIOR_WEIGHT nights.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    own: dict[str, tuple[float, int]] = {}
    for name, rows in histories.items():
        known = (speeds or {}).get(name, ())
        logs = list(map(math.log, known if len(known) > len(rows) else map(single_speed, rows)))
        own[name] = (max(LEAST, statistics.variance(logs)), len(logs) - 1) if len(logs) > 1 else (0.0, 0)
        groups[_hardware(rows[-1])].append(name)
    found: dict[str, Spread] = {}
    for names in groups.values():
        told = [own[name] for name in names if own[name][1] > 0]
        if len(told) >= 3:
            variance, degrees = pooled([one[0] for one in told], [float(one[1]) for one in told])
            variance, degrees = max(LEAST, variance), max(degrees, float(PRIOR_WEIGHT))
        else:
            drifts = [row.drift**2 for name in names for row in histories[name] if row.drift is not None]
            variance, degrees = (
                max([LEAST, *([statistics.median(drifts)] if drifts else [])]),
                float(PRIOR_WEIGHT),
            )
        for name in names:
            mine, count = own[name]
            found[name] = Spread((degrees * variance + count * mine) / (degrees + count), degrees + count)
    return found


def falls(tonight: CellRow, history: Sequence[CellRow], spread: Spread) -> tuple[Fall, Fall]:
    """Return how much slower tonight is than its last good night, and than the median of all of them.

    What tonight's own interval says beyond the usual spread counts too: a night on a noisy machine proves little.
    """
    logs = [speed_log(row) for row in history]
    now = [math.log(speed) for speed in tonight.proofs] or [speed_log(tonight)]
    excess = max(0.0, _own_variance(tonight) - spread.variance) / len(now)
    of_tonight = _of_night(now, history, spread.variance) + excess
    mean, fastest = statistics.fmean(now), max(now)

    def fall(before: float, variance: float) -> Fall:
        return Fall(
            share=1 - math.exp(mean - before),
            share_of_fastest=1 - math.exp(fastest - before),
            chance=upper_tail((before - mean) / math.sqrt(variance + of_tonight), spread.degrees),
            before=math.exp(before),
        )

    share = _MEDIAN[len(logs) - 1] if len(logs) <= len(_MEDIAN) else math.pi / 2 / len(logs)
    return fall(logs[-1], spread.variance), fall(statistics.median(logs), spread.variance * share)


def slower(falls: tuple[Fall, Fall], level: float, thresholds: Thresholds) -> Fall | None:
    """Return the surer of two falls that is one at a level, and worth telling; None where neither is.

    A night that was the fastest by luck is no measure: of the other comparison there must be a fall too. Nor are proofs
    of which one is as fast as ever.
    """
    told = [fall for fall in falls if fall.chance < level and fall.share_of_fastest > thresholds.throughput]
    if not told or min(fall.share for fall in falls) <= 0:
        return None
    return min(told, key=lambda fall: fall.chance)


def suspected(tonight: CellRow, history: Sequence[CellRow], spread: Spread, thresholds: Thresholds) -> bool:
    """Tell whether a winner is to be proven once more before a night says that it is slower."""
    return (
        len(tonight.proofs) < PROOFS
        and slower(falls(tonight, history, spread), SUSPECTED, thresholds) is not None
    )


def threshold(level: float, spread: Spread) -> float:
    """Return the fall, as a share, that is told at a level where there is a single night to compare with."""
    return 1 - math.exp(-quantile(level, spread.degrees) * math.sqrt(2 * spread.variance))


def speed_log(row: CellRow) -> float:
    """Return the logarithm of a proven cell's speed: of several proofs the mean."""
    if row.proofs:
        return statistics.fmean(map(math.log, row.proofs))
    assert row.tokens_per_second is not None
    return math.log(row.tokens_per_second)


def single_speed(row: CellRow) -> float:
    """Return a proven cell's tokens per second as its first proof showed them, which no choice has biased."""
    assert row.tokens_per_second is not None
    return row.proofs[0] if row.proofs else row.tokens_per_second


def grown(before: Sequence[int], now: int, thresholds: Thresholds, kind: str) -> int | None:
    """Return the peak (bytes) that one has grown from: the last good night's, or the median; None where it has not.

    `before` are the good nights' peaks, the oldest first. Beyond the threshold's share it must be more than one night
    has differed from the next, and on the cpu device than launches differ by.
    """
    noise = max((abs(b - a) for a, b in itertools.pairwise(before)), default=0)
    least = CPU_NOISE if kind == "cpu" else 0
    for reference in (before[-1], round(statistics.median(before))):
        if now - reference > max(thresholds.peak * reference, noise, least):
            return reference
    return None


def had_room(fit: Fit, budget: int, thresholds: Thresholds, kind: str) -> bool:
    """Tell whether what fitted once left more of a budget free than nights differ by: then an OOM is no accident."""
    least = CPU_NOISE if kind == "cpu" else 0
    return (
        not fit.oom and fit.peak is not None and fit.peak + max(thresholds.peak * fit.peak, least) <= budget
    )


def _of_night(logs: Sequence[float], history: Sequence[CellRow], variance: float) -> float:
    """Return the variance of the mean of one night's proofs, of which one alone has `variance`.

    How much of that is of the single proof is told by the proofs themselves and by the drift within earlier runs: what
    is the less of the two.
    """
    if len(logs) < 2:
        return variance
    within = min(statistics.variance(logs), (1 - OF_THE_NIGHT) * variance)
    if drifts := [row.drift**2 for row in history if row.drift is not None]:
        within = min(within, statistics.median(drifts))
    return variance - within * (1 - 1 / len(logs))


def _own_variance(row: CellRow) -> float:
    if row.interval is None or row.tokens_per_second is None:
        return 0.0
    return (row.interval / row.tokens_per_second / NORMAL) ** 2


def _hardware(row: CellRow) -> str:
    return "" if row.environment is None else row.environment.hardware
