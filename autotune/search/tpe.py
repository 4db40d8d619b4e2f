"""Optuna's tree-structured Parzen estimator (TPE) with a constraint: a function of what was seen, and of a seed.

Multivariate: all parameters are drawn together (Falkner, Klein and Hutter, BOHB, 2018). What broke the constraint ranks
behind all that kept it, by how much it broke it (Watanabe and Hutter, c-TPE, 2023), and has no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

RANDOM = 4
"""Trials before which draws are uniform: an estimator of fewer would be one of nothing."""

Places = dict[str, float]
"""Where in its range each parameter is."""


@dataclass(frozen=True)
class Parameter:
    """The range of a parameter: `unordered` and `ordered` have so many places from 0 on, `share` goes from 0 to 1."""

    kind: Literal["unordered", "ordered", "share"]
    places: int = 0


@dataclass(frozen=True)
class ObservedTrial:
    """A trial that ended."""

    places: Places
    value: float | None
    """What is minimized; None where the trial came to none."""
    excess: float | None = None
    """By how much the constraint was broken, above 0; None where it was kept."""


def draws(
    parameters: Mapping[str, Parameter], seen: Sequence[ObservedTrial], seed: int, most: int
) -> Iterator[Places]:
    """Yield up to `most` draws. Each takes those before it to be under way, which counts as bad: the constant liar."""
    import optuna  # 0.5 s that `--help` does not wait for

    distributions = {name: _distribution(parameter) for name, parameter in parameters.items()}
    sampler = optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=RANDOM, multivariate=True, constant_liar=True
    )
    with _quiet():
        # A study without a name would draw one from the machine's own random numbers.
        study = optuna.create_study(study_name="autotune", sampler=sampler)
    study.add_trials([_told(one, distributions) for one in seen])
    for _ in range(most):
        yield dict(study.ask(distributions).params)


def _distribution(parameter: Parameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match parameter.kind:
        case "share":
            return FloatDistribution(0.0, 1.0)
        case "ordered":
            return IntDistribution(0, parameter.places - 1)
        case "unordered":
            return CategoricalDistribution(tuple(range(parameter.places)))


def _told(seen: ObservedTrial, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """Return a trial in Optuna's words: complete with its value, or ended early."""
    from optuna.trial import TrialState, create_trial

    params: dict[str, Any] = {name: seen.places[name] for name in distributions}
    return create_trial(
        params=params, distributions=dict(distributions), value=seen.value,
        state=TrialState.PRUNED if seen.value is None else TrialState.COMPLETE,
        constraints=None if seen.excess is None else {"excess": seen.excess},
    )  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from logging that a study was made: one is with every proposal."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
