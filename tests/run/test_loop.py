"""The loop on an executor made of arithmetic: what it does with every kind of answer, and with being killed."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.errors import InputError, JournalError, NothingFits
from autotune.reporting.document import document, drawing, print_report
from autotune.reporting.reported import Reported
from autotune.reporting.run_list import run_list
from autotune.run.best import Best
from autotune.run.folder import create_run, find_run, load_spec
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec, start


def test_a_run_ends_with_a_proven_winner_and_its_file(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    best, paths = start(tmp_path, executor)
    assert Best.read(paths.best) == best
    assert best.proof.passed
    assert [kind for kind, _ in executor.launched].count("prove") == 1
    assert executor.launched[-1] == ("prove", best.candidate)
    assert best.candidate == Candidate(micro_batch=11)
    assert best.accumulation.equation() == "6,600 = 1,100 x 1 x 6"
    record = read_record(paths.journal)
    assert record.decided.winner == next(t.number for t in record.history if t.candidate == best.candidate)
    assert not paths.finalist.exists()


def test_every_launch_is_journaled_before_it_happens(tmp_path):
    spec = make_spec()
    paths = create_run(spec, tmp_path)

    class Looking(ArithmeticExecutor):
        def run(self, request, folder, **rest):
            entries = [json.loads(line) for line in paths.journal.read_text().splitlines()]
            if request.kind == "train":
                assert entries[-1]["type"] == "started"
                assert Candidate.model_validate(entries[-1]["candidate"]) == request.candidate
            if request.kind == "prove":
                assert entries[-1]["type"] == "proof_started"
            return super().run(request, folder, **rest)

    tune(spec, paths, Looking(Arithmetic(budget=1000)))


@pytest.mark.parametrize("strategy", ["grid", "random"])
def test_a_run_by_another_strategy_ends_in_the_same_files_and_its_report_says_how_it_searched(
    tmp_path, strategy
):
    spec = make_spec(max_probes=30).model_copy(update={"strategy": strategy})
    paths = create_run(spec, tmp_path)
    assert load_spec(paths).strategy == strategy
    best = tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    assert best.proof.passed
    assert Best.read(paths.best).strategy == strategy
    record = read_record(paths.journal)
    assert record.searched.reason == "max_probes"
    assert len(record.history) == 30
    assert (record.path, record.skipped) == ((), ())
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(paths, console)
    text = console.export_text()
    assert f"Search by strategy {strategy}\n  30 probes of " in text
    assert "stopped after 30 probes (--max-probes)" in text
    assert "Path through the graph" not in text
    shown = document(paths)
    assert (shown["spec"]["strategy"], shown["best"]["strategy"], shown["path"]) == (strategy, strategy, [])
    with pytest.raises(InputError) as caught:
        drawing(paths)
    assert caught.value.about == ("mermaid",)


def test_the_default_strategy_walks_the_graph_where_nothing_is_predicted_and_the_report_says_so(tmp_path):
    best, paths = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)))
    assert best.strategy == "guided"
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(paths, console)
    text = console.export_text()
    assert "Path through the graph\n  BF16 baseline (micro-batch 1): fits -> Grow" in text
    assert "Search by strategy" not in text


def test_a_grid_that_is_tried_to_its_end_names_each_rung_where_nothing_fits(tmp_path):
    spec = make_spec().model_copy(update={"strategy": "grid"})
    with pytest.raises(NothingFits) as error:
        tune(spec, create_run(spec, tmp_path), ArithmeticExecutor(Arithmetic(budget=5)))
    assert len(error.value.causes) == 14


@pytest.mark.parametrize(("strategy", "told"), [("graph", True), ("grid", False), ("guided", False)])
def test_where_nothing_on_the_graph_fits_what_lies_beside_it_is_told(tmp_path, strategy, told):
    spec = make_spec().model_copy(update={"strategy": strategy})
    paths = create_run(spec, tmp_path)
    with pytest.raises(NothingFits) as error:
        tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=5)))
    tried = {trial.candidate.rung() for trial in read_record(paths.journal).history}
    assert ("--strategy guided" in error.value.headline) == told
    assert not told or f"Not tried are {14 - len(tried)} rungs" in error.value.headline


def test_limits_end_the_search_and_the_best_so_far_is_proven(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    best, _ = start(tmp_path, executor, max_probes=3)
    assert best.candidate.micro_batch == 4
    best, _ = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)), time_budget=2)
    assert best.candidate.micro_batch == 2


def test_a_finished_run_is_not_run_again(tmp_path):
    best, paths = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)))
    again = ArithmeticExecutor(Arithmetic(budget=1000))
    assert tune(load_spec(paths), paths, again) == best
    assert again.launched == []


def test_files_that_a_killed_tuner_was_writing_are_cleared(tmp_path):
    paths = create_run(make_spec(), tmp_path)
    probe = paths.probe(1) / "rank1"
    probe.mkdir(parents=True)
    left = [
        folder / name for folder in (paths.root, paths.probe(1), probe) for name in (".best.yaml.17", ".x.1")
    ]
    mine = paths.root / ".notes"
    for path in (*left, mine):
        path.touch()
    tune(load_spec(paths), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    assert not [path for path in left if path.exists()]
    assert mine.exists()


def test_a_device_without_bf16_is_tuned_in_fp16(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.alter_device(dtypes=())
    best, _ = start(tmp_path, executor)
    assert best.candidate.precision == "fp16"
    assert {candidate.precision for kind, candidate in executor.launched if kind == "train"} == {"fp16"}


def test_what_a_killed_tuner_left_on_the_disk_is_removed(tmp_path):
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    left = paths.probe(1) / "scratch" / "mapped"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"many GiB")
    tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    assert not left.exists()


@pytest.mark.parametrize("damage", [None, "a: [", "kind: best"])
def test_a_winner_s_file_that_is_gone_or_damaged_is_written_again_from_the_record(tmp_path, damage):
    best, paths = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)))
    paths.best.unlink() if damage is None else paths.best.write_text(damage)
    with pytest.raises(JournalError) as caught:
        Reported.read(paths)
    assert caught.value.kind == "damaged"
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    again = tune(load_spec(paths), paths, executor)
    assert executor.launched == []
    assert again.model_copy(update={"created": best.created}) == best
    assert Reported.read(paths).best == again


def test_a_run_whose_spec_is_gone_is_found_by_its_journal_which_has_it(tmp_path):
    _, paths = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)))
    spec = load_spec(paths)
    paths.spec.unlink()
    assert find_run(paths.id, tmp_path) == find_run("last", tmp_path) == paths
    assert load_spec(paths) == spec
    assert [run.name for run in run_list(tmp_path)[0]] == [paths.id]
    paths.spec.write_bytes(b"\xb9\x00")
    with pytest.raises(JournalError) as caught:
        load_spec(paths)
    assert caught.value.kind == "damaged"


def test_an_emptied_journal_beside_what_probes_left_is_no_new_run(tmp_path):
    _, paths = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)))
    spec = load_spec(paths)
    paths.journal.write_bytes(b"")
    before = paths.best.read_bytes()
    with pytest.raises(JournalError) as caught:
        tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    assert caught.value.kind == "damaged"
    assert paths.best.read_bytes() == before
    assert paths.journal.read_bytes() == b""
    assert [run.state for run in run_list(tmp_path)[0]] == ["damaged"]
