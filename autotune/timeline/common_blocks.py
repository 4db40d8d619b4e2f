"""What shows that two micro-steps have the same blocks, though what is beside these differs (`timeline.joined`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.timeline.depth import NotAlike
from autotune.timeline.divided_step import DividedStep, ReleaseGroup

LAST = 2
"""Of the stretches before, between and behind the blocks the last."""


class Names:
    """Which slot of one micro-step stands for which of another."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.back: dict[int, int] = {}

    def add(self, our: int, their: int) -> None:
        """Say that a slot stands for another. Raises NotAlike where it stands for a third."""
        if self.of.setdefault(our, their) != their or self.back.setdefault(their, our) != our:
            raise NotAlike("slots do not correspond")


class CommonBlocks:
    """Two micro-steps with the same blocks, and which slot of one is which of the other."""

    def __init__(self, common: DividedStep, rest: DividedStep) -> None:
        """Compare them. Raises NotAlike where their blocks differ."""
        if list(common.passes) != list(rest.passes):
            raise NotAlike("the blocks are others")
        self.common, self.rest = common, rest
        self.rest_of = Names()
        """Of slots of `common`: within blocks, and what of those made beside them is known to be the same."""
        self.let_go_by_blocks: set[int] = set()
        """Slots of `common` that are made beside blocks, and released by these."""
        self.anchors: dict[int | None, int | None] = {}
        """Of what is made before and behind the blocks in `common`, what is so in `rest`; None stands for the end."""
        self._compare()

    def _compare(self) -> None:
        common, rest, names = self.common, self.rest, self.rest_of
        # What is made before the blocks and behind them first: a loss changes little of that.
        for part in (0, LAST):
            ours, theirs = (step.rows(step.stretches()[part]) for step in (common, rest))
            made = [[step.size(row.made) for row in rows if row.made is not None]
                    for step, rows in ((common, ours), (rest, theirs))]  # fmt: skip
            if made[0] != made[1]:
                continue
            for our, their in zip(ours, theirs, strict=True):
                self._pair_rows(our, their)
            if part == LAST:
                self.anchors[None] = None
        for key, span in common.passes.items():
            for our, their in paired(common.rows(span), rest.rows(rest.passes[key])):
                self._compare_row(our.released, their.released)
                if our.made is not None and their.made is not None:
                    if common.size(our.made) != rest.size(their.made):
                        raise NotAlike("blocks make other sizes")
                    names.add(our.made, their.made)
        ours_arrive = [(names.of[slot], *told) for slot, *told in common.arrivals(common.within)]
        if sorted(ours_arrive) != rest.arrivals(rest.within):
            raise NotAlike("other gradients arrive in blocks")

    def _pair_rows(self, ours: ReleaseGroup, theirs: ReleaseGroup) -> None:
        """Note what two rows beside blocks have alike, where that is plain."""
        common, rest = self.common, self.rest
        if ours.made is not None and theirs.made is not None:
            self.rest_of.add(ours.made, theirs.made)
            self.anchors[ours.made] = theirs.made
        our = [slot for slot in ours.released if slot in common.beside and slot not in self.rest_of.of]
        their = [slot for slot in theirs.released if slot in rest.beside and slot not in self.rest_of.back]
        for slot in our:
            size = common.size(slot)
            found = [other for other in their if rest.size(other) == size]
            if len(found) == 1 and sum(common.size(one) == size for one in our) == 1:
                self.rest_of.add(slot, found[0])

    def _compare_row(self, ours: Sequence[int], theirs: Sequence[int]) -> None:
        """Compare what blocks release in a row; what was made beside them may be known by that alone."""
        common, rest, names = self.common, self.rest, self.rest_of
        self.let_go_by_blocks |= common.beside.intersection(ours)
        known = {names.of[slot] for slot in ours if slot in names.of}
        built = {slot for slot in ours if slot not in common.within and slot not in common.beside}
        our = [slot for slot in ours if slot not in names.of and slot not in built]
        their = [slot for slot in theirs if slot not in known and slot not in built]
        if len(ours) != len(theirs) or len(our) != len(their) or not {*our} <= common.beside:
            raise NotAlike("blocks release other things")
        pairs = zip(sorted(our, key=common.size), sorted(their, key=rest.size), strict=True)
        for one, other in pairs:
            if other not in rest.beside or common.size(one) != rest.size(other):
                raise NotAlike("blocks release other sizes")
            names.add(one, other)


def paired(
    ours: Sequence[ReleaseGroup], theirs: Sequence[ReleaseGroup]
) -> Iterator[tuple[ReleaseGroup, ReleaseGroup]]:
    """Return rows of two stretches by twos. Raises NotAlike where one makes more."""
    if len(ours) != len(theirs):
        raise NotAlike("more is made in one than in the other")
    return zip(ours, theirs, strict=True)
