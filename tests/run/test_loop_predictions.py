"""The loop with the memory model: fewer probes for the same winner, and every prediction on record."""

from __future__ import annotations

import json

from rich.console import Console

from autotune.candidate import Candidate
from autotune.outcome import Oom
from autotune.reporting.document import document, print_report
from autotune.reporting.live import Terminal
from autotune.run.best import Best
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.proof import proof_request
from autotune.search.drift import FLOOR
from autotune.specs import Goal
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.units import MIB
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, ArithmeticTracer, foreseen, make_spec, start


def test_the_memory_model_finds_the_same_winner_with_fewer_probes(tmp_path):
    best, paths, tracer = foreseen(tmp_path)
    blind = ArithmeticExecutor(BIG)
    expected, _ = start(tmp_path / "blind", blind)
    assert best.candidate == expected.candidate
    record = read_record(paths.journal)
    assert len(record.history) < len([kind for kind, _ in blind.launched if kind == "train"])
    assert not [trial for trial in record.history if isinstance(trial.outcome, Oom)]
    assert tracer.traced == [Candidate(), Candidate(checkpointing="full")]
    assert [entry.candidate.micro_batch for entry in record.skipped] == [13, 64]
    assert record.path[-1].node == "grow_checkpointed"


def test_the_micro_batch_for_evaluation_is_predicted_and_handed_to_the_proof(tmp_path):
    best, paths, _ = foreseen(tmp_path)
    size, trained = best.evaluation_micro_batch, best.candidate.micro_batch
    assert trained < size < 16 * trained
    assert proof_request(best, 1.0).evaluation_micro_batch == size
    assert Best.read(paths.best).evaluation_micro_batch == size
    made = timeline(BIG, best.candidate)
    usable = BIG.budget * (1 - best.headroom)
    assert made.evaluated(trained, size) <= usable
    assert made.evaluated(trained, 2 * size) > usable
    blind, *_ = foreseen(tmp_path / "blind", predict=False)
    assert blind.evaluation_micro_batch is None


def test_every_probe_carries_its_prediction_and_is_measured_against_it(tmp_path):
    _, paths, _ = foreseen(tmp_path)
    for trial in read_record(paths.journal).history:
        assert trial.prediction.low <= trial.outcome.memory.peak() <= trial.prediction.high
        assert abs(trial.error()) < 0.02


def test_what_two_steps_of_a_walk_pass_over_is_told_once(tmp_path):
    goal = Goal(target="13 samples", seq_len=100, headroom=0.0, exact=True)  # 1 or 13 samples
    little = Arithmetic(budget=250).in_units(16 * MIB)
    _, paths, _ = foreseen(tmp_path, ArithmeticExecutor(little), ArithmeticTracer(little), goal=goal)
    lines = [json.loads(line) for line in paths.journal.read_text().splitlines()]
    told = [(line["node"], line["candidate"]["micro_batch"]) for line in lines if line["type"] == "skipped"]
    assert told == [("baseline", 1), ("checkpointing", 1), ("grow", 13)]


def test_without_prediction_nothing_is_traced(tmp_path):
    _, paths, tracer = foreseen(tmp_path, predict=False)
    assert tracer.traced == []
    record = read_record(paths.journal)
    assert record.skipped == ()
    assert all(trial.prediction is None for trial in record.history)


def test_a_rung_that_cannot_be_traced_is_probed_and_not_traced_again(tmp_path):
    tracer = ArithmeticTracer(BIG, untraceable="bf16")
    best, paths, _ = foreseen(tmp_path, tracer=tracer)
    assert best.candidate == Candidate(micro_batch=11)
    assert tracer.traced.count(Candidate()) == 1
    record = read_record(paths.journal)
    assert record.traced[0].reason.startswith("operator x")
    assert record.history[0].prediction is None
    assert Oom in {type(trial.outcome) for trial in record.history}


def test_a_resumed_run_foresees_what_it_foresaw(tmp_path):
    whole, paths, _ = foreseen(tmp_path / "whole")
    lines = paths.journal.read_text().splitlines()
    for count in range(2, len(lines)):
        made = make_spec()
        cut = create_run(made, tmp_path / str(count))
        cut.journal.write_text("\n".join(lines[:count]) + "\n")
        tracer = ArithmeticTracer(BIG)
        best = tune(made, cut, ArithmeticExecutor(BIG), tracer=tracer)
        assert best.candidate == whole.candidate
        ours, theirs = read_record(cut.journal), read_record(paths.journal)
        assert [trial.candidate for trial in ours.history] == [trial.candidate for trial in theirs.history]
        assert [entry.candidate for entry in ours.skipped] == [entry.candidate for entry in theirs.skipped]


def test_what_the_cache_has_lost_is_said_and_traced_again_together(tmp_path):
    """One by one, each would wait for a worker that imports torch, and nobody would know what for."""
    _, paths, before = foreseen(tmp_path)
    decided = paths.journal.read_text().splitlines()
    ended = next(place for place, line in enumerate(decided) if '"searched"' in line)
    paths.journal.write_text("\n".join(decided[:ended]) + "\n")
    tracer = ArithmeticTracer(BIG)
    with (tmp_path / "screen.txt").open("w") as file:
        tune(
            make_spec(),
            paths,
            ArithmeticExecutor(BIG),
            Terminal(Console(file=file, width=160), make_spec()),
            tracer,
        )
    assert (tracer.traced, tracer.together) == (before.traced, [len(before.traced)])
    assert "tracing bf16 and 1 more" in (tmp_path / "screen.txt").read_text()


def test_a_report_shows_predictions_and_what_was_passed_over(tmp_path):
    _, paths, _ = foreseen(tmp_path)
    with (tmp_path / "report.txt").open("w") as file:
        print_report(paths, Console(file=file, width=160))
    text = (tmp_path / "report.txt").read_text()
    assert "predicted" in text
    assert "7.04 GiB +0.1%" in text  # the heap, which arithmetic has none of
    assert "bf16, micro-batch 13: passed over, predicted 16." in text
    said = document(paths)
    assert [entry["candidate"]["micro_batch"] for entry in said["skipped"]] == [13, 64]
    assert abs(said["trials"][0]["prediction_error"]) < 0.02
    speed, interval = (said["trials"][0][f"tokens_per_second{end}"] for end in ("", "_interval"))
    assert interval > FLOOR * speed, "its own steps' spread, and the drift"
    assert said["path"][1] == ["grow", "oom", "predicted"]
