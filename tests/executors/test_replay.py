"""A replayed device: whole runs on a grid of arithmetic, answered with its outcomes at its cost, and nothing else."""

import dataclasses

import pytest

from autotune.candidate import Candidate
from autotune.devices.find import check_device, find
from autotune.devices.recorded_grid import GridTrace, NotRecorded, read_grid
from autotune.errors import InputError
from autotune.executors.find import find_executor, find_tracer
from autotune.executors.replay import ReplayExecutor
from autotune.models.resolve import resolve
from autotune.options import RunOptions
from autotune.outcome import Ok, Unsupported
from autotune.reporting import document as report
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.spec import to_spec
from autotune.search.shipped import load_space
from autotune.specs import DeviceSpec
from autotune.testing.arithmetic import Arithmetic
from autotune.testing.grids import SPEED, START, TRACE, arithmetic_lines, write_grid
from autotune.tracing.replay import ReplayTracer
from autotune.units import MIB
from tests.contracts.test_executors import make_request
from tests.e2e.conftest import autotune

DEVICE = Arithmetic(budget=1000).in_units(MIB)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    model = resolve("tiny-gpt2", base=tmp_path_factory.mktemp("base"))
    path = tmp_path_factory.mktemp("grids") / "grid.jsonl"
    return write_grid(path, arithmetic_lines(DEVICE, load_space("minimal"), model=model))


def options(file, **changes):
    given = {
        "model": "tiny-gpt2", "seq_len": 64, "target_global_batch": "16 samples", "device": f"replay:{file}",
        "headroom": 0.0,
    }  # fmt: skip
    return RunOptions.load(given | changes, "options")


def run(file, folder, **changes):
    spec = to_spec(options(file, **changes), check_device, folder)
    tracer = find_tracer(spec.device)
    paths = create_run(spec, folder / "runs")
    best = tune(spec, paths, find_executor(spec.device, tracer), tracer=tracer)
    return best, read_record(paths.journal), paths


def test_the_grid_strategy_finds_the_fastest_of_the_record(file, tmp_path):
    best, record, paths = run(file, tmp_path, strategy="grid", max_probes=1000, predict=False)
    grid = read_grid(file)
    fitting = {
        one: point.outcome.timing.global_step(point.accumulation_steps)
        for one, point in grid.points.items()
        if isinstance(point.outcome, Ok)
    }
    # Of equally fast ones the smaller peak wins; a global step of arithmetic takes what its samples take and more.
    assert best.candidate == min(fitting, key=fitting.__getitem__)
    for trial in record.history:
        assert (trial.outcome, trial.seconds) == (grid.points[trial.candidate].outcome, trial.seconds)
        assert trial.seconds == grid.points[trial.candidate].seconds
    assert (best.evidence, best.proof) == ("replayed", None)
    assert any(note.startswith("replayed, not measured now") for note in best.notes)
    document = report.document(paths)
    assert document["evidence"] == "replayed"


def test_predictions_come_from_the_record_and_cost_what_they_cost(file, tmp_path):
    best, record, _ = run(file, tmp_path)
    assert record.traced
    assert all(entry.seconds == START + TRACE for entry in record.traced)
    blind, without, _ = run(file, tmp_path, predict=False)
    assert best.candidate == blind.candidate
    assert len(record.history) < len(without.history)


def test_every_strategy_is_told_the_speed_that_was_recorded(file, tmp_path):
    _, record, _ = run(file, tmp_path, strategy="guided")
    assert record.inspection.speed == SPEED
    for trial in record.history:
        if isinstance(trial.outcome, Ok):
            assert trial.prediction.roofline.micro_step.mean == pytest.approx(
                trial.outcome.timing.micro_step.mean
            )
    _, walked, _ = run(file, tmp_path / "graph", strategy="graph")
    assert walked.inspection.speed == SPEED


def test_a_replay_cut_short_goes_on_to_the_same_end(file, tmp_path):
    best, whole, _ = run(file, tmp_path / "whole", predict=False)
    spec = to_spec(options(file, predict=False), check_device, tmp_path)
    paths = create_run(spec, tmp_path / "runs")

    class Cut(ReplayExecutor):
        left = 2

        def run(self, request, folder, **rest):
            self.left -= request.kind == "train"
            if self.left < 0:
                raise KeyboardInterrupt
            return super().run(request, folder, **rest)

    tracer = find_tracer(spec.device)
    with pytest.raises(KeyboardInterrupt):
        tune(spec, paths, Cut(find(spec.device)), tracer=tracer)
    again = tune(spec, paths, find_executor(spec.device, tracer), tracer=tracer)
    assert again.candidate == best.candidate
    assert read_record(paths.journal).history == whole.history


def test_what_was_not_recorded_is_an_error_and_no_guess(file, tmp_path):
    with pytest.raises(NotRecorded, match=r"nothing of that rung"):
        run(file, tmp_path, space="everything", predict=False)
    executor = ReplayExecutor(find(DeviceSpec.parse(f"replay:{file}")))
    header = read_grid(file).header
    known = make_request("train", micro_batch=4).model_copy(
        update={"model": header.model, "seq_len": 64, "accumulation_steps": 4}
    )
    assert isinstance(executor.run(known, tmp_path, timeout=1).answer, Ok)
    for changes, said in (
        ({"candidate": Candidate(checkpointing="full", micro_batch=7)}, "micro-batches 1, 2, 3, 4, 6, 8, 16"),
        ({"accumulation_steps": 2}, "with 4 micro-steps a global step, and not with 2"),
        ({"seq_len": 32}, "another sequence length \\(64, asked for 32\\)"),
        ({"model": header.model.model_copy(update={"config": {}})}, "another model"),
    ):
        with pytest.raises(NotRecorded, match=said):
            executor.run(known.model_copy(update=changes), tmp_path, timeout=1)
    proof = executor.run(known.model_copy(update={"kind": "prove"}), tmp_path, timeout=1)
    assert isinstance(proof.answer, Unsupported)


def test_a_run_of_something_else_is_refused_with_every_difference(file, tmp_path):
    with pytest.raises(NotRecorded) as refused:
        to_spec(options(file, seq_len=32, target_global_batch="8 samples"), check_device, tmp_path)
    assert len(refused.value.problems) == 2
    with pytest.raises(InputError) as missing:
        to_spec(options(tmp_path / "none"), check_device, tmp_path)
    assert missing.value.about == ("device",)


def test_a_trace_of_another_format_is_made_anew_where_something_can(file, tmp_path):
    grid = read_grid(file)
    odd = dataclasses.replace(
        grid,
        traces={Candidate(): GridTrace(candidate=Candidate(), seconds=1, start_seconds=1, timeline="AAAA")},
    )
    request = make_request("trace")
    with pytest.raises(InputError):
        ReplayTracer(odd).trace(request, tmp_path, timeout=1)
    made = object()

    class Making:
        def trace(self, request, folder, **_):
            return {request.candidate: made}

    assert ReplayTracer(odd, Making()).trace(request, tmp_path, timeout=1) == {Candidate(): made}
    with pytest.raises(NotRecorded):
        ReplayTracer(dataclasses.replace(grid, traces={})).trace(request, tmp_path, timeout=1)


def test_the_command_line_replays_and_says_so(file, tmp_path):
    command = (
        "run",
        "--model",
        "tiny-gpt2",
        "--seq-len",
        "64",
        "--target-global-batch",
        "16 samples",
        "--json",
    )
    ended = autotune(*command, "--headroom", "0", "--device", f"replay:{file}", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert "replayed, not measured now" in ended.stderr
    assert ended.document["best"]["evidence"] == "replayed"
    (best,) = tmp_path.glob("runs/*/best.yaml")
    refused = autotune("verify", str(best), "--device", f"replay:{file}", cwd=tmp_path)
    assert refused.code == 2
    assert "proves nothing" in refused.stderr
