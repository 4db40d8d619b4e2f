"""The strategies by their names: what `--strategy` chooses from."""

from __future__ import annotations

from autotune.options import StrategyName
from autotune.search.graph_walk import GraphWalk
from autotune.search.grid import Grid
from autotune.search.guided import Guided
from autotune.search.optuna_search import OptunaSearch
from autotune.search.random_search import RandomSearch
from autotune.search.strategy import Strategy

STRATEGIES: dict[StrategyName, Strategy] = {
    "guided": Guided(), "graph": GraphWalk(), "optuna": OptunaSearch(), "grid": Grid(), "random": RandomSearch(),
}  # fmt: skip
"""Every strategy; a new one is a class in a file of its own, a line here and its name in `options.StrategyName`."""
