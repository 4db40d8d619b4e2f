"""Whole runs with an objective of their own, on the device made of arithmetic."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autotune.errors import InputError
from autotune.objective import Objective, Price
from autotune.outcome import Ok, Sample, StepEnergy
from autotune.reporting.document import document, print_report
from autotune.run.best import Best
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, make_spec


def tuned(folder, objective, executor=None):
    goal = make_spec().goal.model_copy(update={"objective": objective})
    spec = make_spec().model_copy(update={"goal": goal})
    paths = create_run(spec, folder)
    best = tune(spec, paths, executor or ArithmeticExecutor(BIG))
    console = Console(width=200, file=io.StringIO())
    print_report(paths, console)
    return best, paths, " ".join(console.file.getvalue().split())


def test_the_least_memory_wins_where_it_is_asked_for_and_is_proven(tmp_path):
    fastest, _, _ = tuned(tmp_path, Objective())
    best, paths, said = tuned(tmp_path, Objective(name="memory", speed_share=0.6))
    assert best.memory.peak() < fastest.memory.peak()
    assert fastest.share_of_best_speed.value == 1.0
    assert 0.6 <= best.share_of_best_speed.value < 1.0
    assert (best.chosen_by, best.objective.name) == ("memory", "memory")
    assert Best.read(paths.best) == best
    assert best.proof.passed
    (proof,) = read_record(paths.journal).proofs
    assert proof.number == read_record(paths.journal).decided.winner
    assert "objective the smallest that is fast enough (--speed-share 0.6)" in said
    assert f"of best speed {best.share_of_best_speed.value:.1%} ± " in said
    assert "5.2% slower, 9.38 GiB at the peak" in said.partition("Rejected")[2]
    assert document(paths)["spec"]["goal"]["objective"]["name"] == "memory"


def with_energy(device, joules, counter="nvml"):
    """Return an outcome's maker: joules of a micro-step are a function of the candidate."""

    def outcome(candidate):
        found = device.outcome(candidate)
        if not isinstance(found, Ok):
            return found
        each = Sample(mean=joules(candidate), half_width=0.0, count=5)
        return found.model_copy(
            update={
                "energy": StepEnergy(
                    counter=counter, micro_step=each, last_micro_step=each, optimizer_step=each
                )
            }
        )

    return outcome


def test_the_least_energy_is_measured_proven_and_told(tmp_path):
    """A device whose plain steps take as much power as two of its checkpointed ones for each sample."""
    executor = ArithmeticExecutor(BIG)
    executor.alter_device(energy_counter="nvml")
    executor.answer = with_energy(
        BIG, lambda candidate: candidate.micro_batch * (1.0 if candidate.checkpointing == "full" else 2.0)
    )
    best, _, said = tuned(tmp_path, Objective(name="energy"), executor)
    assert (best.candidate.checkpointing, best.chosen_by) == ("full", "energy")
    assert best.joules_per_token.value == pytest.approx(
        best.energy.global_step(best.accumulation.steps) / 6400
    )
    assert best.share_of_best_speed.value < 1.0
    assert "objective the one that takes the least energy for each token" in said
    assert f"energy {best.joules_per_token.value:.3g} ± " in said
    assert "J a global step (the GPUs, by NVML)" in said
    assert "% energy" in said.partition("Rejected")[2]
    assert {request.energy for request in executor.requests if request.kind != "inspect"} == {True}
    fastest, _, _ = tuned(tmp_path, Objective(), executor)
    assert fastest.candidate.checkpointing == "none"


def test_energy_that_nothing_counts_is_refused_before_a_run_begins(tmp_path):
    executor = ArithmeticExecutor(BIG)
    executor.alter_device(lacks_energy="this machine counts none")
    with pytest.raises(InputError, match="--objective energy: this machine counts none"):
        tuned(tmp_path, Objective(name="energy"), executor)
    assert not executor.launched


def test_a_price_gives_what_a_million_tokens_cost_whatever_decides(tmp_path):
    price = Price(amount=3.6, currency="USD")
    fastest, _, said = tuned(tmp_path, Objective(price=price))
    cheapest, _, _ = tuned(tmp_path, Objective(name="cost", price=price))
    assert cheapest.candidate == fastest.candidate
    cost = fastest.cost_per_million_tokens.value
    assert cost == pytest.approx(fastest.seconds_per_global_step * 0.001 / 6400 * 1e6)
    assert f"cost {price.of(cost, fastest.cost_per_million_tokens.interval)} a million" in said
    assert "a million tokens, at 3.60 USD an hour" in said
