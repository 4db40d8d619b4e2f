"""What is the best of what was measured, by each objective, and what intervals leave open."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.objective import Objective, Price
from autotune.options import RunOptions
from autotune.outcome import Drift, Sample, StepEnergy, StepTiming
from autotune.run.best import Best
from autotune.run.spec import to_spec
from autotune.run.write_best import chosen
from autotune.search.comparison import (
    CPU_NOISE,
    Joules,
    fast_enough,
    is_better,
    speed_share,
    undominated,
)
from autotune.search.price import cost_per_million_tokens, joules_per_token
from autotune.search.selection import choose, rank, score
from autotune.search.wording import rejected
from autotune.specs import Goal
from autotune.techniques.families import title as title_of
from autotune.testing.arithmetic import ok
from autotune.units import GIB, MIB
from tests.search.test_selection import NONE, trial

MEMORY, ENERGY = Objective(name="memory", speed_share=0.9), Objective(name="energy")
BUDGET = 10 * GIB


@dataclass(frozen=True)
class Entry:
    """What is known of a configuration."""

    seconds: float
    peak: int = GIB
    half_width: float = 0.0
    joules: Joules | None = None
    measured: bool = True

    def against(self, other):
        return None


def measured(number, seconds, peak=GIB, half_width=0.0, joules=None, **fields):
    """Return a trial of 16 micro-steps that takes so many seconds, bytes, and joules (with their half-width)."""
    sample = Sample(mean=seconds / 16, half_width=half_width / 16, count=5)
    nothing = Sample(mean=0.0, half_width=0.0, count=5)
    update = {"timing": StepTiming(micro_step=sample, last_micro_step=sample, optimizer_step=nothing)}
    if joules is not None:
        each = Sample(mean=joules[0] / 16, half_width=joules[1] / 16, count=5)
        update["energy"] = StepEnergy(
            counter="nvml", micro_step=each, last_micro_step=each, optimizer_step=nothing
        )
    return trial(number, ok(peak, budget=BUDGET).model_copy(update=update), **fields)


def numbers(scores):
    return [entry.trial.number for entry in scores]


def test_the_least_memory_is_of_what_reaches_its_share_of_the_best_speed(context):
    """At 90% of the best speed: 11 s against 10 is fast enough, 11.2 is not, however little it takes."""
    history = (
        measured(1, 10.0, 8 * GIB), measured(2, 11.0, 5 * GIB, checkpointing="selective"),
        measured(3, 11.2, 2 * GIB, checkpointing="full"), measured(4, 10.5, 6 * GIB, loss="chunked"),
    )  # fmt: skip
    asked = context(budget=BUDGET, objective=MEMORY)
    ranked = rank(history, asked, NONE)
    assert numbers(ranked) == [2, 4, 1, 3]
    choice = choose(ranked, objective=MEMORY)
    assert (choice.winner.trial.number, choice.by, choice.alternatives) == (2, "memory", ())
    assert choice.speed_share[0] == pytest.approx(10 / 11)
    assert numbers(rank(history, context(budget=BUDGET), NONE)) == [1, 4, 2, 3]
    whys = dict(rejected(history, asked, choice.winner.trial, NONE))
    assert whys[title_of(Candidate(checkpointing="full"))].endswith(
        "2.00 GiB at the peak; slower than 90% of the best speed"
    )
    assert "8.00 GiB at the peak" in next(why for rung, why in whys.items() if rung == "bf16")


def test_peaks_that_launches_do_not_tell_apart_go_to_the_faster_one(context):
    history = (
        measured(1, 10.5, 5 * GIB), measured(2, 10.0, 5 * GIB + CPU_NOISE, checkpointing="selective"),
        measured(3, 10.0, 5 * GIB + 2 * CPU_NOISE, checkpointing="full"),
    )  # fmt: skip
    choice = choose(rank(history, context(budget=BUDGET, objective=MEMORY), NONE), objective=MEMORY)
    assert (choice.winner.trial.number, choice.by, numbers(choice.alternatives)) == (2, "speed", [1])


def test_the_speed_of_the_smallest_is_told_with_what_both_intervals_leave_open():
    fast, small = Entry(10.0, half_width=0.3), Entry(11.0, half_width=0.44)
    share, noise = speed_share(small, [fast, small])
    assert share == pytest.approx(10 / 11)
    assert noise == pytest.approx(share * 0.05)
    assert speed_share(fast, [fast, small]) == (1.0, 0.0)
    assert fast_enough([fast, small], MEMORY) == [fast, small]
    assert fast_enough([fast, small], Objective(name="memory")) == [fast]
    assert fast_enough([small], Objective(name="memory", speed_share=1.0)) == [small]


def test_energy_is_told_apart_by_its_own_intervals_and_a_tie_goes_to_the_faster(context):
    history = (
        measured(1, 10.0, joules=(1000.0, 5.0)), measured(2, 12.0, joules=(900.0, 5.0), checkpointing="selective"),
        measured(3, 11.0, joules=(905.0, 5.0), checkpointing="full"),
    )  # fmt: skip
    asked = context(budget=BUDGET, objective=ENERGY)
    choice = choose(rank(history, asked, NONE), objective=ENERGY)
    assert (choice.winner.trial.number, choice.by, numbers(choice.alternatives)) == (3, "speed", [2])
    clear = choose(rank(history[:2], asked, NONE), objective=ENERGY)
    assert (clear.winner.trial.number, clear.by) == (2, "energy")
    assert joules_per_token(clear.winner) == pytest.approx((900 / 6400, 5 / 6400))
    assert joules_per_token(score(trial(1, ok(500)), context())) is None
    whys = dict(rejected(history, asked, choice.winner.trial, NONE))
    assert "10.5% energy" in whys["bf16"]
    assert any("-0.6% energy (not distinguishable)" in why for why in whys.values())


def test_what_energy_is_known_of_is_better_than_what_it_is_not_known_of():
    known, unknown = Entry(20.0, joules=Joules(5.0, 100.0)), Entry(10.0)
    assert is_better(known, unknown, ENERGY)
    assert not is_better(unknown, known, ENERGY)
    assert not is_better(unknown, unknown, ENERGY)
    assert undominated([unknown, known], ENERGY) == [known]


@pytest.mark.parametrize("goal", [Objective(), MEMORY, ENERGY], ids=["speed", "memory", "energy"])
def test_of_a_thousand_each_is_compared_with_few_before_it_is_known_to_be_beaten(goal, monkeypatch):
    rated = [
        Entry(float(seconds), peak=seconds * GIB, joules=Joules(float(seconds), 0.1))
        for seconds in (1 + number * 617 % 1009 for number in reversed(range(1000)))
    ]
    asked = []
    monkeypatch.setattr(
        "autotune.search.comparison.is_better", lambda *pair: asked.append(pair) or is_better(*pair)
    )
    (best,) = undominated(rated, goal)
    assert best.seconds == 1
    assert len(asked) < 3 * len(rated)


def test_energy_drifts_between_measurements_as_speed_does(context):
    drift = Drift(share=0.03, floor=0.02, halves=1, repeats=0)
    found = score(measured(1, 10.0, joules=(1000.0, 40.0)), context(budget=BUDGET), drift)
    assert found.joules == Joules(pytest.approx(1000.0), pytest.approx(50.0))


def test_cost_has_the_order_of_speed_and_a_figure_of_all_devices(context):
    price = Price(amount=3.6, currency="USD")
    objective = Objective(name="cost", price=price)
    asked = context(budget=BUDGET, objective=objective, gpus=2)
    history = (measured(1, 10.0, half_width=1.0), measured(2, 20.0, checkpointing="full"))
    ranked = rank(history, asked, NONE)
    assert numbers(ranked) == [1, 2]
    # Two devices take 8 micro-steps each: 5 s of 2 x 0.001 USD for 6,400 tokens.
    cost, interval = cost_per_million_tokens(ranked[0], asked.goal)
    assert cost == pytest.approx(5 * 0.002 / 6400 * 1e6)
    assert interval == pytest.approx(cost / 10)
    assert cost_per_million_tokens(ranked[0], context().goal) is None


def test_what_was_asked_for_is_in_best_yaml_with_its_figures(context):
    from tests.configurations import make_best

    best = make_best()
    objective = Objective(name="memory", speed_share=0.9, price=Price(amount=2.0))
    choice = choose(
        rank((measured(1, 10.0, 8 * GIB), measured(2, 11.0, 5 * GIB)),
             context(budget=BUDGET, objective=objective), NONE),
        objective=objective,
    )  # fmt: skip
    said = chosen(best.model_copy(update={"objective": objective}), choice)
    assert Best.from_yaml(said.to_yaml(), "best.yaml") == said
    assert said.share_of_best_speed.value == pytest.approx(10 / 11)


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("2.99", 2.99, ""), ("2.99 USD", 2.99, "USD"), ("$2.99", 2.99, "$"), ("1,200 JPY", 1200.0, "JPY"),
        ("€ 3", 3.0, "€"),
    ],
)  # fmt: skip
def test_prices_are_read_as_people_write_them(text, amount, currency):
    assert Price.parse(text) == Price(amount=amount, currency=currency)


def test_small_amounts_are_printed_with_the_digits_that_say_something():
    price = Price(amount=2.99, currency="USD")
    assert (str(price), price.of(0.0000123), price.of(1234.5)) == (
        "2.99 USD",
        "0.0000123 USD",
        "1,234.50 USD",
    )
    assert (price.of(0.5, 0.0123), price.of(0.0)) == ("0.500 ± 0.0123 USD", "0.00 USD")


def refused(tmp_path, **options):
    given = {"model": "tiny-gpt2", "target_global_batch": "16K", "device": "cpu:1GiB", **options}
    with pytest.raises(InputError) as caught:
        to_spec(RunOptions.load(given, "options"), lambda device, _: device, tmp_path)
    return "\n".join(caught.value.problems)


def test_what_an_objective_needs_is_asked_for_by_its_flag(tmp_path):
    assert "--objective cost: " in refused(tmp_path, objective="cost")
    assert "give --price-per-hour" in refused(tmp_path, objective="cost")
    assert "--price-per-hour: 'cheap' is not a price" in refused(tmp_path, price_per_hour="cheap")
    assert "more than 1,000,000,000" in refused(tmp_path, price_per_hour="1e11".replace("e11", "0" * 11))


def test_options_of_the_objective_are_in_the_spec(tmp_path):
    given = {"model": "tiny-gpt2", "target_global_batch": "16K", "device": "cpu:1GiB",
             "objective": "memory", "speed_share": 0.8, "price_per_hour": 2.5}  # fmt: skip
    spec = to_spec(RunOptions.load(given, "options"), lambda device, _: device, tmp_path)
    assert spec.goal.objective == Objective(name="memory", speed_share=0.8, price=Price(amount=2.5))
    assert Goal.model_validate(spec.goal.model_dump(mode="json")) == spec.goal
    assert Goal(target="64").objective == Objective()
    assert CPU_NOISE == 2 * MIB
