"""The winner of a run, in rows for people: configuration, global batch, memory, speed, and what it was chosen for."""

from __future__ import annotations

import shlex

from rich.console import RenderableType
from rich.table import Table

from autotune.run.best import Best
from autotune.run.failure import holes
from autotune.search.wording import BEST_IN, COMPARED, REASONS, SHOWN
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count, format_counted, format_duration

RANKS_SHOWN = 8
"""Ranks whose peaks are shown one by one."""
COUNTERS = {"nvml": "the GPUs, by NVML", "rapl": "all that runs on the processors, by RAPL"}
"""What a counter of energy counts."""


def winner_panel(best: Best) -> RenderableType:
    """Return the winner: configuration, accumulation written out, memory and speed with their evidence."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in winner_rows(best):
        grid.add_row(name, value)
    return grid


def winner_rows(best: Best) -> list[tuple[str, str]]:
    """Return the facts about a winner as (name, text)."""
    memory, accumulation = best.memory, best.accumulation
    left = best.free()
    batch = f"{accumulation.equation()}  (tokens: micro-batch x devices x accumulation steps)"
    if accumulation.difference:
        more, target = format_count(accumulation.difference), format_count(accumulation.target)
        batch += f"; {more} more than the {target} asked for"
    rows = [
        ("configuration", best.title()),
        *([("start with", shlex.join(best.command.argv))] if best.command is not None else []),
        *([("allowed", f"{', '.join(best.allowed)} (--allow)")] if best.allowed else []),
        *([("devices", f"{best.gpus} in {best.nodes} nodes")] if best.nodes > 1 else []),
        (
            "micro-batch",
            f"{best.candidate.micro_batch} x {format_count(accumulation.tokens_per_sample)} tokens",
        ),
        ("accumulation", f"{accumulation.steps} step{'s' * (accumulation.steps > 1)}"),
        ("global batch", batch),
        (
            "memory",
            f"{format_bytes(best.peak())} of {format_bytes(memory.budget)} at the peak, {format_bytes(left)} free "
            f"({left / memory.budget:.1%}); tensors {format_bytes(memory.allocated)}",
        ),
        (
            "speed",
            f"{format_count(best.tokens_per_second)} ± {format_count(best.tokens_per_second_interval)} tokens/s, "
            f"{format_duration(best.seconds_per_global_step)} a global step"
            + (f", MFU {best.mfu:.1%}" if best.mfu is not None else ""),
        ),
        *objective_rows(best),
        *([("attention", _attention(best))] if best.attention or best.attention_kernels else []),
        *([("finals", _finals(best))] if best.finals else []),
        *([("choice", said)] if (said := choice(best)) else []),
        ("evidence", best.evidence),
    ]
    if best.communication is not None:
        seconds = best.communication.global_step(accumulation.steps)
        share = f"{format_duration(seconds)} of a global step ({seconds / best.seconds_per_global_step:.0%}), computing"
        rows.insert(-1, ("communication", f"{share} meanwhile not taken off"))
    if (wait := best.timing.data_wait) is not None:
        waiting = f"{wait.mean / max(best.timing.last_micro_step.mean, 1e-9):.0%}"
        said = f"{format_duration(wait.mean)} of a micro-step until its batch is there ({waiting})"
        rows.insert(-1, ("data", said))
    if by_rank := memory.by_rank:
        at = next(index for index, (name, _) in enumerate(rows) if name == "memory") + 1
        rows.insert(at, ("of each rank", _peaks(by_rank)))
    if best.proof is not None:
        rows.append(("proof", best.proof.why))
    elif best.evaluation_micro_batch is not None:
        rows.append(
            ("evaluation", f"micro-batch {format_count(best.evaluation_micro_batch)} should fit (predicted)")
        )
    if best.unknown:
        rows.append(("unknown", holes(best.unknown)))
    rows += [("note", note) for note in best.notes]
    return rows


def objective_rows(best: Best) -> list[tuple[str, str]]:
    """Return what the objective compared, as (name, text); nothing where speed alone was asked for."""
    objective, rows = best.objective, []
    if objective.name != "speed":
        said = BEST_IN[objective.name]
        if objective.name == "memory":
            said += f" (--speed-share {objective.speed_share:g})"
        rows.append(("objective", said))
    if objective.name in {"memory", "energy"} and (share := best.share_of_best_speed) is not None:
        rows.append(("of best speed", f"{share.value:.1%} ± {share.interval:.1%} of the fastest that fits"))
    if (cost := best.cost_per_million_tokens) is not None and (price := objective.price) is not None:
        devices = f"{best.gpus} x " if best.gpus > 1 else ""
        rows.append(
            (
                "cost",
                f"{price.of(cost.value, cost.interval)} a million tokens, at {devices}{price} an hour",
            )
        )
    if (joules := best.joules_per_token) is not None and best.energy is not None:
        step = joules.value * best.accumulation.target
        counter = COUNTERS[best.energy.counter]
        rows.append(
            (
                "energy",
                f"{joules.value:.3g} ± {joules.interval:.2g} J a token, {step:,.4g} J a global step ({counter})",
            )
        )
    return rows


def _attention(best: Best) -> str:
    kernels = " and ".join(best.attention_kernels)
    if not kernels:
        return best.attention or ""
    kernels += " kernels" if len(best.attention_kernels) > 1 else " kernel"
    return f"{best.attention or 'sdpa'}, torch's {kernels} {'assumed' if best.evidence == 'predicted' else 'ran'}"


def _finals(best: Best) -> str:
    """Return how the winner compared with the other finalists, in alternation."""
    said = []
    for other in best.finals:
        by = f"{abs(other.slower):.1%} ± {other.slower_interval:.1%} {'slower' if other.slower >= 0 else 'faster'}"
        what = f"{title_of(other.candidate)}, micro-batch {other.candidate.micro_batch}"
        said.append(f"{what} was {by} in {format_counted(other.rounds, 'round')}")
    return f"measured again in alternation: {'; '.join(said)}"


def _peaks(by_rank: tuple[int, ...]) -> str:
    """Return the peaks of all ranks, or of many ranks the range."""
    if len(by_rank) <= RANKS_SHOWN:
        return ", ".join(format_bytes(peak) for peak in by_rank)
    return f"{format_bytes(min(by_rank))} to {format_bytes(max(by_rank))}"


def choice(best: Best) -> str:
    """Return what made a winner one of several that the objective does not tell apart; empty where that alone did."""
    if not best.alternatives:
        return ""
    named = [
        f"{title_of(other.candidate)}, micro-batch {other.candidate.micro_batch} "
        f"({format_count(other.tokens_per_second)} ± {format_count(other.tokens_per_second_interval)} tokens/s)"
        for other in best.alternatives[:SHOWN]
    ]
    if (more := len(best.alternatives) - SHOWN) > 0:
        named.append(f"{more} more")
    by = COMPARED[best.objective.name]
    return f"not distinguishable by {by} from {'; '.join(named)}: chosen for {REASONS[best.chosen_by]}"
