"""What help and docstrings say of an option's values is what the option takes."""

from __future__ import annotations

import inspect
from typing import Literal, get_args, get_origin

import pytest

from autotune import cli
from autotune.candidate import AXES, choices
from autotune.errors import InputError
from autotune.options import RunOptions, to_spec
from autotune.run.best import Best
from autotune.search.strategies import STRATEGIES
from autotune.specs import RunSpec, StrategyName


def helps() -> list[tuple[str, str, str]]:
    """Return (verb, axis, help) of every option of the command line that sets an axis."""
    found = []
    for verb in (cli.run, cli.estimate):
        for name, parameter in inspect.signature(verb, eval_str=True).parameters.items():
            if name in AXES:
                found.append((verb.__name__, name, parameter.annotation.__metadata__[0].help))
    return found


def test_there_are_options_for_axes() -> None:
    assert {"optimizer", "precision", "sharding"} <= {name for _, name, _ in helps()}


@pytest.mark.parametrize(("verb", "axis", "text"), helps(), ids=lambda value: str(value)[:20])
def test_help_names_every_value_of_an_axis(verb: str, axis: str, text: str) -> None:
    words = text.replace(",", " ").replace(".", " ").replace(":", " ").split()
    assert [value for value in map(str, choices(axis)) if value not in words] == []


@pytest.mark.parametrize("name", RunOptions.model_fields)
def test_a_field_of_a_spec_names_every_value_that_it_takes(name: str) -> None:
    field = RunOptions.model_fields[name]
    assert field.description
    if get_origin(field.annotation) is Literal:
        values = get_args(field.annotation)
        assert [value for value in values if f"`{value}`" not in field.description] == []


def test_best_offers_only_the_evidence_that_something_makes() -> None:
    assert get_args(Best.model_fields["evidence"].annotation) == ("measured", "predicted")


def test_a_strategy_is_named_in_the_spec_and_a_name_that_is_none_gets_the_nearest(tmp_path) -> None:
    assert tuple(STRATEGIES) == get_args(StrategyName)
    assert [strategy.name for strategy in STRATEGIES.values()] == list(STRATEGIES)
    given = {"model": "tiny-gpt2", "target_global_batch": 64, "device": "cpu:1GiB"}
    file = tmp_path / "spec.yaml"
    file.write_text("strategy: grid\n")

    def spec(**options: str) -> RunSpec:
        return to_spec(RunOptions.gather({**given, **options}, file), lambda device: device, tmp_path)

    assert spec().strategy == "grid"
    assert spec(strategy="random").strategy == "random"
    with pytest.raises(
        InputError, match=r"strategy: 'grdi' is not one of 'graph', 'grid' or 'random'; did you mean grid"
    ):
        spec(strategy="grdi")
