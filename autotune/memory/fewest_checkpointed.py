"""The fewest checkpointed blocks with which a candidate fits: none more is computed again than the memory asks for."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from autotune.candidate import Candidate
from autotune.memory.calibration import Corrected


class PeakPredictor(Protocol):
    """What prices candidates: a `Predictor`."""

    def bounds(self, candidate: Candidate) -> Corrected | None:
        """Return the peak of a candidate with its interval (bytes); None where nothing was traced that tells."""
        ...


class Untraced(NamedTuple):
    """What has to be traced before the question can be answered."""

    candidate: Candidate


def with_checkpointed_blocks(candidate: Candidate, count: int, blocks: int) -> Candidate:
    """Return a candidate with so many of a model's blocks checkpointed, by the one name that this has."""
    assert 0 <= count <= blocks
    changes: dict[str, object] = {"checkpointed_blocks": "all" if count in {0, blocks} else count}
    return candidate.model_copy(update=changes | ({"checkpointing": "none"} if count == 0 else {}))


def fewest_checkpointed(
    predictor: PeakPredictor, candidate: Candidate, usable: int, blocks: int,
    bound: Literal["low", "mean", "high"] = "high", known_only: bool = False,
) -> Candidate | Untraced | None:  # fmt: skip
    """Return the candidate, at its micro-batch, with the fewest of the model's blocks checkpointed that fits.

    It is checkpointed in the way that the candidate has, in all blocks (`checkpointed_blocks: all`), in some, or in
    none. None where not even all of them make it fit. `usable` is in bytes; `bound` says which end of the interval of
    a peak has to be within it. A peak does not grow with the number, and falls by nearly as much with each: looked at
    is the number that a straight line between two others says, and those beside it.

    Where something has to be traced first, that is the answer: both ends, then one in the middle, which tells of
    nearly all (`timeline.checkpointed`). With `known_only` numbers that would have to be traced for themselves are
    passed over, so that the answer may have a block more than needed; of all blocks nothing else is asked then either.
    """
    assert candidate.checkpointing != "none", "nothing says how blocks are checkpointed"

    def peak(count: int) -> float | None:
        bounds = predictor.bounds(with_checkpointed_blocks(candidate, count, blocks))
        return None if bounds is None else float(getattr(bounds, bound))

    def untraced(count: int) -> Untraced:
        return Untraced(with_checkpointed_blocks(candidate, count, blocks))

    every = peak(blocks)
    if every is None:
        return untraced(blocks)
    if every > usable:
        return None
    nothing = peak(0)
    if nothing is None and not known_only:
        return untraced(0)
    if nothing is not None and nothing <= usable:
        return with_checkpointed_blocks(candidate, 0, blocks)
    if blocks > 1 and not known_only and peak(blocks // 2) is None:
        return untraced(blocks // 2)
    few, enough = (0, nothing), (blocks, every)  # the first does not fit, as far as is known; the second does
    passed_over: set[int] = set()
    while open_ := [count for count in range(few[0] + 1, enough[0]) if count not in passed_over]:
        wanted = _between(few, enough, usable)
        count = min(open_, key=lambda one: abs(one - wanted))
        found = peak(count)
        if found is None and not known_only:
            return untraced(count)
        if found is None:
            passed_over.add(count)
        elif found <= usable:
            enough = (count, found)
        else:
            few = (count, found)
    return with_checkpointed_blocks(candidate, enough[0], blocks)


def _between(few: tuple[int, float | None], enough: tuple[int, float], usable: int) -> int:
    """Return which number fits as a straight line has it: the middle where the peak with few is not known."""
    (low, above), (high, below) = few, enough
    if above is None or above <= below:
        return (low + high) // 2
    return high - int((usable - below) / (above - below) * (high - low))
