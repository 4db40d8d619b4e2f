"""Rankings in layers: what nothing is known to be better than, then what only that is better than, and so on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from autotune.objective import Objective
from autotune.search.comparison import Paired, Rated, is_better, rough, undominated


class Alternated(Rated, Protocol):
    """What is known of a configuration that may have been measured in alternation with others."""

    @property
    def pairs(self) -> Mapping[int, Paired]:
        """How it compared with others so; empty where it was not."""
        ...


_One = TypeVar("_One", bound=Alternated)


def in_layers(scores: Sequence[_One], objective: Objective) -> list[list[_One]]:
    """Return the layers, the best first: each holds what is `undominated` where the layers before it are taken away.

    Each score is compared with those alone that its intervals do not tell it from, and with one more: of a thousand
    that differ, each makes a layer, and taking layer after layer away would be a million comparisons.
    """
    # Alternation aside, what is better comes earlier here, so that a score's layer follows from those before it.
    order = sorted(scores, key=lambda entry: rough(entry, objective))
    last = max((place for place, entry in enumerate(order, 1) if entry.pairs), default=0)
    layers = _taken_away(order[:last], objective)
    if layers is None:
        return _taken_away(order, objective, with_circles=True) or []
    for entry in order[last:]:
        worse_than = next(
            (
                depth
                for depth in range(len(layers), 0, -1)
                if any(is_better(other, entry, objective) for other in layers[depth - 1])
            ),
            0,
        )
        if worse_than == len(layers):
            layers.append([])
        layers[worse_than].append(entry)
    return layers


def _taken_away(
    left: Sequence[_One], objective: Objective, with_circles: bool = False
) -> list[list[_One]] | None:
    """Return the layers of these by taking away one after the other.

    None where rounds of alternation contradict each other in a circle, of which each has a better one; `with_circles`
    leaves it to `undominated` what is then taken.
    """
    layers: list[list[_One]] = []
    while left:
        front = undominated(left, objective)
        if not with_circles and len(front) == 1 and any(is_better(one, front[0], objective) for one in left):
            return None
        layers.append(front)
        first = {id(entry) for entry in front}
        left = [entry for entry in left if id(entry) not in first]
    return layers
