"""Whole runs whose probes end as soon as they cannot win, on the device made of arithmetic."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from autotune.objective import Objective
from autotune.outcome import Ok
from autotune.racing import cannot_win, speed_bound
from autotune.reporting.document import document, print_report
from autotune.reporting.live import Terminal
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, make_spec


@dataclass
class Parts:
    micro_step: float
    last_micro_step: float
    optimizer_step: float


class Racing(ArithmeticExecutor):
    """Ends a probe as a worker does, after one step."""

    def run(self, request, folder, **rest):
        result = super().run(request, folder, **rest)
        if request.to_beat is None or not isinstance(result.answer, Ok):
            return result
        timing = result.answer.timing
        parts = Parts(timing.micro_step.mean, timing.last_micro_step.mean, timing.optimizer_step.mean)
        bound = speed_bound([parts], request.accumulation_steps, request.to_beat)
        if not cannot_win(bound):
            return result
        answer = result.answer.model_copy(update={"timing": None, "bound": bound})
        return result.model_copy(update={"answer": answer})


def raced(folder, executor, objective=Objective(), callbacks=None):  # noqa: B008
    spec = make_spec(max_probes=30)
    goal = spec.goal.model_copy(update={"objective": objective})
    spec = spec.model_copy(update={"goal": goal, "strategy": "grid"})
    paths = create_run(spec, folder)
    best = tune(spec, paths, executor, callbacks(spec) if callbacks else None)
    return best, paths


def test_only_probes_have_something_to_beat_and_the_first_has_nothing(tmp_path):
    executor = Racing(BIG)
    raced(tmp_path, executor)
    kinds = [(request.kind, request.to_beat is not None) for request in executor.requests]
    trains = [raced for kind, raced in kinds if kind == "train"]
    assert kinds[0] == ("inspect", False)
    assert kinds[-1] == ("prove", False)
    assert (trains[0], all(trains[1:])) == (False, True)
    limits = [request.to_beat.seconds for request in executor.requests if request.to_beat]
    assert limits == sorted(limits, reverse=True)


def test_a_race_has_the_winner_of_a_run_that_measures_all_and_records_bounds_for_what_lost(tmp_path):
    best, paths = raced(tmp_path, Racing(BIG))
    full, _ = raced(tmp_path, ArithmeticExecutor(BIG))
    assert best.candidate == full.candidate
    assert best.tokens_per_second == full.tokens_per_second
    slow = [trial for trial in read_record(paths.journal).history if getattr(trial.outcome, "bound", None)]
    assert len(slow) > 3
    assert best.candidate not in {trial.candidate for trial in slow}
    assert not {entry.candidate for entry in best.alternatives} & {trial.candidate for trial in slow}


def test_what_is_shown_of_one_that_ended_early_is_a_bound(tmp_path):
    console = Console(width=250, file=io.StringIO())
    _, paths = raced(tmp_path, Racing(BIG), callbacks=lambda spec: Terminal(console, spec))
    assert "a global step, so it ended early)" in console.file.getvalue()
    entries = [entry for entry in document(paths)["trials"] if entry["outcome"].get("bound")]
    for entry in entries:
        assert "tokens_per_second" not in entry
        assert entry["seconds_per_global_step_at_least"] > 0
        assert entry["tokens_per_second_at_most"] > 0
    report = Console(width=250, file=io.StringIO())
    print_report(paths, report)
    text = report.file.getvalue()
    assert "≤ " in text
    assert "so it was not measured to the end" in text


@pytest.mark.parametrize("name", ["memory"])
def test_an_objective_that_needs_every_speed_is_not_raced(tmp_path, name):
    executor = Racing(BIG)
    raced(tmp_path, executor, Objective(name=name))
    assert not any(request.to_beat for request in executor.requests)
