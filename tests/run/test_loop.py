"""The loop on an executor made of arithmetic: what it does with every kind of answer, and with being killed."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.errors import InputError, ModelError, NoDiskSpace, NothingFits, ProbeError, RunInUse
from autotune.outcome import Timeout, Unsupported
from autotune.probe.protocol import Inspection
from autotune.reporting.document import document, drawing, print_report
from autotune.run.best import Best
from autotune.run.folder import create_run, load_spec
from autotune.run.journal import Journal, read_record
from autotune.run.loop import tune
from autotune.run.preflight import Preflight
from autotune.search.context import SearchContext
from autotune.search.shipped import load_space
from autotune.specs import Goal
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import FACTS, ArithmeticExecutor, crash
from tests.fakes.runs import make_spec, start
from tests.search.test_space import DEFAULT


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


def test_nothing_fits_says_what_came_nearest_and_how_much_is_missing(tmp_path):
    with pytest.raises(
        NothingFits,
        match=r"(?s)nothing fits 5 B.*full offload at micro-batch 1, which needs at least 5 B more",
    ):
        start(tmp_path, ArithmeticExecutor(Arithmetic(budget=5)))


def test_a_model_that_cannot_be_cut_is_not_launched_to_find_out(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    spec = make_spec()
    spec = spec.model_copy(
        update={
            "goal": Goal(target="6400", seq_len=100, headroom=0.0, gpus=2),
            "space": load_space("tensor_parallel").model_dump(mode="json"),
        }
    )
    executor.inspection = Inspection(facts=FACTS.model_copy(update={"divided": {"num_key_value_heads": 3}}))
    paths = create_run(spec, tmp_path)
    best = tune(spec, paths, executor)
    assert best.candidate.sharding == "fsdp2"
    refused = [trial for trial in read_record(paths.journal).history if trial.outcome.kind == "unsupported"]
    assert [trial.candidate.tensor_parallel for trial in refused] == [2]
    assert (refused[0].outcome.axis, refused[0].outcome.cause) == ("tensor_parallel", "context")
    assert all(candidate.tensor_parallel == 1 for _, candidate in executor.launched)


def test_a_bug_in_the_model_stops_the_run_with_its_traceback(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains[Candidate()] = crash()
    with pytest.raises(ModelError) as caught:
        start(tmp_path, executor)
    assert caught.value.traceback == crash().traceback
    assert caught.value.exit_code == 4
    assert [kind for kind, _ in executor.launched] == ["inspect", "train"]


def test_a_model_that_cannot_be_built_is_found_before_any_probe(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.inspection = crash("KeyError: 'hidden'")
    with pytest.raises(ModelError):
        start(tmp_path, executor)
    executor.inspection = Unsupported(reason="sequences of at most 512 tokens")
    with pytest.raises(InputError) as caught:
        start(tmp_path, executor)
    assert "sequences of at most 512 tokens" in caught.value.problems[0], "the worker's own words"


def test_a_look_at_the_model_that_fails_says_what_failed_and_names_the_flag(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))

    def said(outcome, kind):
        executor.inspection = outcome
        with pytest.raises(kind) as caught:
            start(tmp_path, executor)
        return str(caught.value), caught.value.exit_code

    text, code = said(crash("KeyError: 'tokens'"), ModelError)
    assert "was built, but failed on a first batch: KeyError" in text
    assert "cannot be built" not in text
    text, code = said(Timeout(phase="build", seconds=600.0), ModelError)
    assert "building it was cut off after 10m 00s (--probe-timeout)" in text
    assert code == 4
    text, _ = said(Timeout(phase="forward", seconds=60.0), ModelError)
    assert "its forward on a first batch was cut off after 1m 00s (--probe-timeout)" in text
    text, code = said(Timeout(phase="start", seconds=5.0), ProbeError)
    assert "not imported within 5.00 s (--probe-timeout)" in text
    assert code == 1, "this machine's fault, not the model's"


def test_a_bug_that_shows_at_a_larger_micro_batch_stops_the_run_and_every_resume(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains[Candidate(micro_batch=2)] = crash()
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    said = r"probe 2 \(bf16, micro-batch 2\) failed in forward: ValueError: no. Micro-batch 1 trained.*{largest: 1}"
    for expected in (["inspect", "train", "train"], []):  # what is known is not tried again
        executor.launched.clear()
        with pytest.raises(ModelError, match=said) as caught:
            tune(spec, paths, executor)
        assert caught.value.traceback.startswith("Traceback")
        assert [kind for kind, _ in executor.launched] == expected
    assert not paths.best.exists()


@pytest.mark.parametrize("kind", ["inspect", "train", "prove"])
def test_a_full_disk_stops_the_run_and_is_forgotten_once_there_is_room(tmp_path, kind):
    undisturbed, _ = start(tmp_path / "undisturbed", ArithmeticExecutor(Arithmetic(budget=1000)))
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    whole, launched = executor.run, []

    def full(request, folder, **rest):
        launched.append(request.kind)
        if request.kind == kind and launched.count(kind) == (
            1 if kind == "inspect" else 2 if kind == "train" else 1
        ):
            raise NoDiskSpace("disk full in saving a checkpoint: /runs, 2 B were to be written, 1 B are free")
        return whole(request, folder, **rest)

    executor.run = full
    with pytest.raises(NoDiskSpace) as caught:
        tune(spec, paths, executor)
    assert caught.value.exit_code == 1
    interrupted = read_record(paths.journal).entries[-1]
    assert (interrupted.type, interrupted.why) == ("interrupted", "disk full")
    best = tune(spec, paths, executor)
    assert best.candidate == undisturbed.candidate
    assert best.unknown == ()
    assert launched.count("prove") == (2 if kind == "prove" else 1)
    assert all(proof.passed for proof in read_record(paths.journal).proofs)


def test_room_for_a_checkpoint_is_looked_for_before_the_proof(tmp_path):
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    executor = ArithmeticExecutor(Arithmetic(budget=1000), room=119)  # parameters and two moments take 120
    said = r"the proof of probe 6 writes 120 B .*, and the disk of .*probes.* has 119 B free; make room there"
    for _ in range(4):  # as often as one likes: it is no try
        with pytest.raises(NoDiskSpace, match=said):
            tune(spec, paths, executor)
    assert all(kind != "prove" for kind, _ in executor.launched)
    assert not read_record(paths.journal).proofs
    executor.room = 120
    assert tune(spec, paths, executor).proof.passed


def test_a_library_s_limit_can_be_stayed_below(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains |= {Candidate(micro_batch=size): crash() for size in range(5, 65)}
    bounded = DEFAULT.replace("grow: {factor: 2, resolution: 0.1}", "grow: {largest: 4}")
    assert bounded != DEFAULT
    best, _ = start(tmp_path, executor, space_text=bounded)
    assert best.candidate == Candidate(micro_batch=4)


def test_a_technique_that_crashes_beside_a_rung_that_works_is_named(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    broken = Candidate(checkpointing="full", micro_batch=13)
    executor.trains[broken] = crash("RuntimeError: a saved tensor was changed")
    best, paths = start(tmp_path, executor)
    assert best.candidate == Candidate(micro_batch=11)
    console = Console(width=200, file=io.StringIO())
    print_report(paths, console)
    said = " ".join(console.file.getvalue().split())
    assert (
        "bf16 + checkpointing: micro-batch 13: crashed (exception), RuntimeError: a saved tensor was" in said
    )


def test_a_bug_that_every_proof_shows_is_the_model_s(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    original = executor.run

    def failing(request, folder, **rest):
        finding = original(request, folder, **rest)
        return finding.model_copy(update={"answer": crash()}) if request.kind == "prove" else finding

    executor.run = failing
    with pytest.raises(ModelError, match="failed when it was relaunched, first probe 6 in forward") as caught:
        start(tmp_path, executor)
    assert caught.value.traceback.startswith("Traceback")


def test_native_code_that_dies_at_a_larger_size_only_ends_growth(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains[Candidate(micro_batch=4)] = crash(reason="signal")
    best, _ = start(tmp_path, executor)
    assert best.candidate == Candidate(micro_batch=2)


def test_offload_that_disk_or_host_cannot_hold_is_refused_before_launching(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=300), room=50)
    with pytest.raises(NothingFits):
        start(tmp_path, executor)
    assert all(candidate.offload == "none" for _, candidate in executor.launched)
    record = read_record(next(tmp_path.iterdir()) / "journal.jsonl")
    refused = [trial for trial in record.history if trial.candidate.offload != "none"]
    assert refused
    assert {(trial.outcome.axis, trial.outcome.cause) for trial in refused} == {("offload", "room")}


def test_a_model_that_the_machine_cannot_hold_while_it_is_built_is_refused_before_launching(tmp_path):
    spec = make_spec()
    space = load_space("everything").model_dump(mode="json")
    spec = spec.model_copy(update={"goal": spec.goal.model_copy(update={"gpus": 2}), "space": space})
    sharded = Candidate(sharding="fsdp2")
    for room, fits in ((20, True), (19, False)):  # of each rank, for 40 bytes of parameters
        executor = ArithmeticExecutor(Arithmetic(budget=300), room=room)
        context = SearchContext.of(spec, FACTS, 300, executor.describe())
        refused = Preflight(context, executor, tmp_path).refusal(sharded)
        assert fits == (refused is None)
        assert fits or (refused.cause, refused.reason[:42]) == (
            "room",
            "building the model takes 40 B of the disk ",
        )


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


def test_a_grid_that_is_tried_to_its_end_names_each_rung_where_nothing_fits(tmp_path):
    spec = make_spec().model_copy(update={"strategy": "grid"})
    with pytest.raises(NothingFits) as error:
        tune(spec, create_run(spec, tmp_path), ArithmeticExecutor(Arithmetic(budget=5)))
    assert len(error.value.causes) == 14


def test_limits_end_the_search_and_the_best_so_far_is_proven(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    best, _ = start(tmp_path, executor, max_probes=3)
    assert best.candidate.micro_batch == 4
    best, _ = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)), time_budget=2)
    assert best.candidate.micro_batch == 2


def test_an_impossible_batch_is_refused_before_any_probe(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    spec = make_spec().model_copy(update={"goal": Goal(target="64", seq_len=100)})
    with pytest.raises(InputError) as caught:
        tune(spec, create_run(spec, tmp_path), executor)
    assert caught.value.about == ("target_global_batch",)
    assert [kind for kind, _ in executor.launched] == ["inspect"]


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


def test_a_run_under_way_is_refused_to_a_second_tuner(tmp_path):
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    with Journal(paths.journal, paths.lock), pytest.raises(RunInUse):
        tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))


def test_a_device_without_bf16_is_tuned_in_fp16(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.alter_device(dtypes=())
    best, _ = start(tmp_path, executor)
    assert best.candidate.precision == "fp16"
    assert {candidate.precision for kind, candidate in executor.launched if kind == "train"} == {"fp16"}


def test_fp8_is_refused_where_nothing_multiplies_it_and_nothing_is_launched(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.alter_device(kind="cuda")
    space = (
        "name: mine\ndescription: fp8, else bf16\naxes: {precision: [fp8, bf16]}\ngraph:\n  start: small\n  nodes:\n"
        "    small: {title: FP8, set: {precision: fp8}, next: {unsupported: bare}}\n"
        "    bare: {title: BF16, set: {precision: bf16}}\n"
    )
    best, paths = start(tmp_path, executor, space_text=space)
    refused = read_record(paths.journal).history[0]
    assert (refused.candidate.precision, best.candidate.precision) == ("fp8", "bf16")
    assert (refused.outcome.axis, refused.outcome.cause) == ("precision", "device")
    assert {candidate.precision for kind, candidate in executor.launched if kind == "train"} == {"bf16"}


def test_what_a_killed_tuner_left_on_the_disk_is_removed(tmp_path):
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    left = paths.probe(1) / "scratch" / "mapped"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"many GiB")
    tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    assert not left.exists()
