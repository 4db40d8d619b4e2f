"""How the numbers of a winner come about: the global batch, the time of a global step, and the tokens per second."""

from __future__ import annotations

from typing import NamedTuple

from autotune.reporting.memory_bar import MORE_IN_PROOF, REST, more_in_proof
from autotune.run.best import Best
from autotune.units import format_bytes, format_count, format_counted

TIMES, MINUS = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"


class Term(NamedTuple):
    """A number of a sum or product, and what it is."""

    value: str
    name: str


class Sum(NamedTuple):
    """A result and how it comes about: terms with the signs between them."""

    title: str
    result: Term
    terms: tuple[Term, ...]
    signs: tuple[str, ...]
    """What stands before each term; `=` before the first."""
    note: str = ""


def exact_seconds(seconds: float) -> str:
    """Return seconds with so many digits that a sum of them is seen to add up."""
    return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.4g} s"


def sums(best: Best) -> list[Sum]:
    """Return the arithmetic of a winner. The parts of a step are those that were measured (or predicted)."""
    batch = best.accumulation
    timing, steps = best.timing, batch.steps
    more = ""
    if batch.difference:
        more = (
            f"{format_count(batch.difference)} more than the {format_count(batch.target)} that were asked for"
        )
    shared = (
        f", {best.candidate.tensor_parallel} sharing a model" if best.candidate.tensor_parallel > 1 else ""
    )
    found = [
        Sum(
            "Global batch", Term(format_count(batch.effective), "tokens an optimizer step"),
            (
                Term(format_count(batch.micro_batch), "samples a device"),
                Term(format_count(batch.tokens_per_sample), "tokens a sample"),
                Term(format_count(batch.world_size), f"device{'s' * (batch.world_size > 1)}{shared}"),
                Term(format_count(steps), f"accumulation step{'s' * (steps > 1)}"),
            ),
            ("=", TIMES, TIMES, TIMES), more,
        )
    ]  # fmt: skip
    last = Term(exact_seconds(timing.last_micro_step.mean), "last micro-step, gradients synchronized")
    update = Term(exact_seconds(timing.optimizer_step.mean), "optimizer step")
    terms: tuple[Term, ...] = (last, update)
    signs: tuple[str, ...] = ("=", "+")
    if steps > 1:
        others = Term(
            f"{format_count(steps - 1)} {TIMES} {exact_seconds(timing.micro_step.mean)}",
            f"{format_counted(steps - 1, 'micro-step')} before",
        )
        terms, signs = (others, *terms), ("=", "+", "+")
    seconds = best.seconds_per_global_step
    found.append(Sum("Time of a global step", Term(exact_seconds(seconds), "a global step"), terms, signs))
    speed = f"{format_count(best.tokens_per_second)} ± {format_count(best.tokens_per_second_interval)}"
    found.append(
        Sum(
            "Speed", Term(speed, "tokens/s, with its 95% interval"),
            (Term(format_count(batch.effective), "tokens"), Term(exact_seconds(seconds), "a global step")),
            ("=", "÷"),
        )
    )  # fmt: skip
    memory = best.memory
    parts = [
        Term(format_bytes(memory.budget), "budget"),
        Term(format_bytes(memory.allocated), "tensors"),
        Term(format_bytes(memory.peak() - memory.allocated), REST),
    ]
    if beyond := more_in_proof(best):
        parts.append(Term(format_bytes(beyond), MORE_IN_PROOF))
    found.append(
        Sum(
            "Memory", Term(format_bytes(best.free()), "free at the peak"), tuple(parts),
            ("=", *[MINUS] * (len(parts) - 1)),
            f"{best.headroom:.0%} of the budget had to stay free",
        )
    )  # fmt: skip
    return found
