"""The rungs of a space that may be tried, and how each is made up of single techniques. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from autotune.candidate import OPEN, Candidate
from autotune.techniques.consent import leaves_alone
from autotune.techniques.families import BESIDE_PASSES, slowdown

FALLBACKS = ("precision",)
"""Axes of which a search takes another value only where the device refuses the one before; the graph does so.

A value that was allowed though it changes what is learned is no fallback: it competes with what is taken first.
"""

SAVES_ACTIVATIONS = ("checkpointing", "loss")
"""Axes over whose techniques others are priced that move what is kept for the backward pass, or that need them: of a
checkpointed block only the input is left to move, of a chunked loss no logits."""
MOVES_ACTIVATIONS = ("activation_offload",)
"""The axes that move it."""
SHARDING = ("sharding", "engine")
"""Axes over whose techniques others are priced that need them: full offload leaves weights to FSDP."""
LEAST_LEFT = 0.5
"""What techniques beside the passes may spare of a step together, at most, as a share. Assumed."""


class MemoryLine(NamedTuple):
    """Bytes that a rung takes at large micro-batches, where they grow by the sample."""

    fixed: float
    per_sample: float
    """At least 1."""


class _Single(NamedTuple):
    """One technique of a rung."""

    axis: str
    rung: Candidate
    """With it, and else as plain as may be."""
    over: Candidate
    """The same without it."""
    slowdown: float
    """As declared."""


class Ladder:
    """Rungs of a search, each at micro-batch 1, in the order in which they were given. Remembers what it computed."""

    def __init__(self, base: Candidate, axes: Sequence[str], rungs: Sequence[Candidate]) -> None:
        self.rungs = tuple(rungs)
        self._base = base.rung()
        self._axes = tuple(axes)
        self._legal = frozenset(rungs)
        self._references: dict[tuple[Any, ...], Candidate] = {}
        self._differing: dict[Candidate, tuple[str, ...]] = {}
        self._techniques: dict[Candidate, tuple[_Single, ...]] = {}
        self._parts: dict[Candidate, tuple[Candidate, ...]] = {}
        self._plain: dict[Candidate, Candidate] = {}
        self._fallbacks: dict[tuple[str, Any], Any] = {}
        for axis in FALLBACKS:
            values = dict.fromkeys(getattr(rung, axis) for rung in self.rungs)
            first = next((value for value in values if leaves_alone(axis, value)), getattr(base, axis))
            self._fallbacks |= {
                (axis, value): value if leaves_alone(axis, value) else first for value in values
            }

    def reference(self, rung: Candidate) -> Candidate:
        """Return the rung that others of its precision are compared with: the space's base."""
        fallback = self._fallback(rung)
        if (values := tuple(fallback.values())) not in self._references:
            self._references[values] = self._base.model_copy(update=fallback)
        return self._references[values]

    def competes(self, rung: Candidate, best: Candidate) -> bool:
        """Tell whether a rung is another choice than the best, and no fallback for a device that refuses that."""
        return self._fallback(rung) == self._fallback(best)

    def _fallback(self, rung: Candidate) -> dict[str, Any]:
        return {axis: self._fallbacks.get((axis, value := getattr(rung, axis)), value) for axis in FALLBACKS}

    def parts(self, rung: Candidate) -> tuple[Candidate, ...]:
        """Return the legal rungs that have one technique of this one, some besides those that it is priced over."""
        if rung not in self._parts:
            self._parts[rung] = tuple(one.rung for one in self._singles(rung) if one.rung in self._legal)
        return self._parts[rung]

    def plain(self, candidate: Candidate) -> Candidate:
        """Return a candidate without the techniques that cost time to save memory."""
        rung = candidate.rung()
        plain = self._plain.get(rung)
        if plain is None:
            # How many blocks are checkpointed goes with that they are.
            slower = [
                axis for axis in self._axes if axis in OPEN or slowdown(axis, getattr(candidate, axis)) > 1
            ]
            changes = {axis: getattr(self._base, axis) for axis in slower}
            plain = self._plain[rung] = rung.model_copy(update=changes) if changes else rung
        return plain.at(candidate.micro_batch)

    def differing(self, rung: Candidate) -> tuple[str, ...]:
        """Return the axes in which a rung differs from its reference."""
        if rung not in self._differing:
            reference = self.reference(rung)
            self._differing[rung] = tuple(
                axis for axis in self._axes if getattr(rung, axis) != getattr(reference, axis)
            )
        return self._differing[rung]

    def _singles(self, rung: Candidate) -> tuple[_Single, ...]:
        """Return the techniques that a rung is made of."""
        if rung not in self._techniques:
            found = []
            for axis in self.differing(rung):
                change = {axis: getattr(rung, axis)}
                pairs = [(over, over.model_copy(update=change)) for over in self._beneath(rung, axis)]
                over, single = next((pair for pair in pairs if pair[1] in self._legal), pairs[0])
                found.append(_Single(axis, single, over, slowdown(axis, change[axis])))
            self._techniques[rung] = tuple(found)
        return self._techniques[rung]

    def _beneath(self, rung: Candidate, axis: str) -> tuple[Candidate, ...]:
        """Return what one of a rung's techniques may be priced over, the plainest first."""
        reference = self.reference(rung)
        if axis in SAVES_ACTIVATIONS or axis in OPEN:
            return (reference,)
        sparing = reference.model_copy(update={name: getattr(rung, name) for name in SAVES_ACTIVATIONS})
        if axis in MOVES_ACTIVATIONS:
            return (sparing,)
        moving = sparing.model_copy(update={name: getattr(rung, name) for name in MOVES_ACTIVATIONS})
        if axis in SHARDING:
            return reference, sparing, moving
        sharded = {name: getattr(rung, name) for name in SHARDING}
        return tuple(
            one.model_copy(update=more) for one in (reference, sparing, moving) for more in ({}, sharded)
        )

    def without(self, rung: Candidate, parts: Callable[[Candidate], bool]) -> Candidate:
        """Return a rung without those of its parts of which something holds."""
        reference = self.reference(rung)
        changes = {
            one.axis: getattr(reference, one.axis)
            for one in self._singles(rung)
            if one.rung in self._legal and parts(one.rung)
        }
        return rung.model_copy(update=changes)

    def guess(self, rung: Candidate, priced: Callable[[Candidate], float | None]) -> float | None:
        """Return the seconds that a rung is expected to take by what its techniques cost one by one.

        What changes the passes of the blocks multiplies the reference's time, what comes beside these is added: by what
        a trace of the part showed, else by what its techniques declare as usual. `priced` returns the seconds of a rung
        that was traced. None without a price of the reference.
        """
        seconds = priced(self.reference(rung))
        if seconds is None:
            return None
        factor, added = 1.0, 0.0
        for one in self._singles(rung):
            having = priced(one.rung)
            without = None if having is None else priced(one.over) or self.guess(one.over, priced)
            beside = one.axis in BESIDE_PASSES
            if without is None or having is None:
                share = one.slowdown
            else:
                share = 1 + (having - without) / seconds if beside else having / without
            if beside:
                added += share - 1
            else:
                factor *= share
        # Two that spare some of a step may spare the same.
        return seconds * max(factor + added, LEAST_LEFT * factor)

    def guess_size(
        self, rung: Candidate, usable: float, taken: Callable[[Candidate], MemoryLine | None]
    ) -> int | None:
        """Return the largest micro-batch that may fit into `usable` bytes, by what a rung's techniques take one by one.

        What each spares of the reference's bytes alone, it spares beside the others: that is the most it can be, for
        two may spare the same. 0 where not even one sample fits; None where a technique was not traced alone, or
        may not stand alone.
        """
        found = self.guess_taken(rung, taken)
        return None if found is None else max(0, int((usable - found.fixed) / found.per_sample))

    def guess_taken(
        self, rung: Candidate, taken: Callable[[Candidate], MemoryLine | None]
    ) -> MemoryLine | None:
        """Return what a rung takes, by what its techniques spare one by one; None as for `guess_size`."""
        reference, singles = taken(self.reference(rung)), self._singles(rung)
        if reference is None or len(self.parts(rung)) < len(singles):
            return None
        fixed, per_sample = reference.fixed, reference.per_sample
        for one in singles:
            having = taken(one.rung)
            without = None if having is None else taken(one.over) or self.guess_taken(one.over, taken)
            if without is None or having is None:
                return None
            fixed += having.fixed - without.fixed
            per_sample += having.per_sample - without.per_sample
        return MemoryLine(fixed, max(1.0, per_sample))
