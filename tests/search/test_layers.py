"""Rankings in layers are those of taking one layer after the other away, by few comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.objective import Objective
from autotune.search.comparison import Joules, Paired, is_better, undominated
from autotune.search.layers import in_layers
from autotune.units import MIB

OBJECTIVES = (Objective(), Objective(name="memory", speed_share=0.9), Objective(name="energy"))


@dataclass(frozen=True)
class Entry:
    """What is known of a configuration."""

    number: int
    seconds: float
    half_width: float = 0.0
    peak: int = 0
    joules: Joules | None = None
    measured: bool = True
    pairs: Mapping[int, Paired] = field(default_factory=dict)

    def against(self, other):
        return self.pairs.get(other.number)


def taken_away(left, objective):
    """Return the numbers of each layer as they are defined."""
    layers = []
    while left:
        front = undominated(left, objective)
        layers.append({entry.number for entry in front})
        left = [entry for entry in left if entry.number not in layers[-1]]
    return layers


@st.composite
def entries(draw):
    """Return configurations, of which some were measured in alternation, in circles too."""
    rows = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.integers(0, 9), st.booleans())))
    pairs = draw(
        st.dictionaries(
            st.tuples(st.integers(0, len(rows)), st.integers(0, len(rows))), st.floats(-0.5, 0.5), max_size=4
        )
    )
    known: dict[int, dict[int, Paired]] = {}
    for (one, other), share in pairs.items():
        if one != other:
            known.setdefault(one, {})[other] = Paired(share, 0.1, 3)
            known.setdefault(other, {})[one] = Paired(-share, 0.1, 3)
    return [
        Entry(
            number, float(seconds), float(width), peak * MIB,
            Joules(float(peak), float(width)) if measured else None, measured, known.get(number, {}),
        )
        for number, (seconds, width, peak, measured) in enumerate(rows)
    ]  # fmt: skip


@given(entries(), st.sampled_from(OBJECTIVES))
def test_layers_are_what_is_left_undominated(made, objective):
    found = [{entry.number for entry in layer} for layer in in_layers(made, objective)]
    assert found == taken_away(made, objective)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_a_thousand_that_differ_are_compared_with_their_neighbours(objective, monkeypatch):
    made = [
        Entry(number, float(place), 0.1, 3 * place * MIB, Joules(float(place), 0.1))
        for number, place in enumerate(1 + number * 617 % 1009 for number in range(1000))
    ]
    asked = []
    monkeypatch.setattr(
        "autotune.search.layers.is_better", lambda *pair: asked.append(pair) or is_better(*pair)
    )
    layers = in_layers(made, objective)
    assert len(layers) == 1000
    assert len(asked) < 2 * len(made)
