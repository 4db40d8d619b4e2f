"""`autotune verify`: which files, where its scratch goes, and the code of several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.errors import InputError, ProbeError
from autotune.executors.executor import ProbeResult
from autotune.exit_codes import ExitCode, worst
from autotune.options import Limits
from autotune.outcome import Lost, Ok
from autotune.run import verify as verification
from autotune.run.disk_use import written_bytes
from autotune.run.folder import create_run, find_best
from autotune.run.loop import tune
from autotune.run.paths import RunPaths
from autotune.run.verify import recorded_device, verify
from autotune.specs import DeviceSpec
from autotune.testing.arithmetic import Arithmetic
from tests.configurations import make_best
from tests.fakes.executor import ArithmeticExecutor, slower
from tests.fakes.runs import make_spec


class Recording(ArithmeticExecutor):
    """Notes where proofs were to write."""

    def __init__(self) -> None:
        super().__init__(Arithmetic(budget=1000))
        self.folders: list[Path] = []

    def run(self, request, folder, **rest):
        self.folders.append(folder)
        assert folder.is_dir()
        return super().run(request, folder, **rest)


@pytest.fixture
def executor(monkeypatch):
    made = Recording()
    monkeypatch.setattr(verification, "find_executor", lambda *_, **__: made)
    return made


@pytest.fixture
def proven(tmp_path) -> RunPaths:
    paths = create_run(make_spec(), tmp_path / "runs")
    tune(make_spec(), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    return paths


def test_scratch_goes_beside_the_file_and_leaves_nothing(proven, executor):
    before = sorted(path.name for path in proven.root.iterdir())
    assert verify(proven.best, None, Limits()).passed
    assert executor.folders[-1].parent == proven.root
    assert sorted(path.name for path in proven.root.iterdir()) == before


def test_where_the_files_folder_cannot_be_written_the_runs_is_taken_then_tmpdir(
    proven, executor, tmp_path, monkeypatch
):
    made = verification.scratch_folder
    monkeypatch.setattr(
        verification, "scratch_folder", lambda places, needed: made([Path("/proc"), *places[1:]], needed)
    )
    assert verify(proven.best, None, Limits(), runs=tmp_path / "runs").passed
    assert executor.folders[-1].parent == proven.root, "the run's"
    monkeypatch.setattr(verification, "temporary", lambda: tmp_path)
    assert verify(proven.best, None, Limits(), runs=tmp_path / "elsewhere").passed
    assert executor.folders[-1].parent == tmp_path


def test_a_proof_is_given_room_for_what_it_writes(proven, executor, monkeypatch):
    from autotune.run.best import Best

    best = Best.read(proven.best)
    assert written_bytes(best, "cpu") >= 4 * best.facts.parameters
    away = best.model_copy(update={"candidate": best.candidate.model_copy(update={"offload": "optimizer"})})
    assert written_bytes(away, "cpu") > written_bytes(best, "cpu")
    asked = []
    made = verification.scratch_folder
    monkeypatch.setattr(
        verification, "scratch_folder", lambda places, needed: asked.append(needed) or made(places, needed)
    )
    verify(proven.best, None, Limits())
    assert asked == [written_bytes(best, "cpu")]


def test_a_file_a_folder_a_name_and_last_all_name_the_same(proven, tmp_path):
    runs = tmp_path / "runs"
    for name in (str(proven.best), str(proven.root), proven.root.name, "last"):
        assert find_best(name, runs).resolve() == proven.best.resolve()
    assert find_best("nothing.yaml", runs) == Path("nothing.yaml"), "which its reader refuses"
    proven.best.unlink()
    with pytest.raises(InputError, match=r"has no best\.yaml: .* autotune report "):
        find_best("last", runs)
    with pytest.raises(InputError) as caught:
        find_best("nothing", runs)
    assert caught.value.about == ("run",)


def test_several_files_get_a_verdict_each_and_the_code_of_the_worst(proven, executor, tmp_path):
    def invoke(*files):
        return CliRunner().invoke(app, ["verify", *files, "--runs", str(tmp_path / "runs"), "--json"])

    good = str(proven.best)
    done = invoke(good, "last")
    assert (done.exit_code, [entry["passed"] for entry in json.loads(done.stdout)]) == (0, [True, True])
    outcome = executor.device.outcome(json_candidate(proven))
    assert isinstance(outcome, Ok)
    executor.proofs[json_candidate(proven)] = slower(outcome, 9.0)
    done = invoke(good, "nothing.yaml", good)
    entries = json.loads(done.stdout)
    assert [entry["exit_code"] for entry in entries] == [3, 2, 3]
    assert "tokens per second" in entries[0]["why"]
    assert entries[1]["proof"] is None
    assert "cannot be read" in done.stderr
    assert done.exit_code == 2


def json_candidate(paths: RunPaths):
    from autotune.run.best import Best

    return Best.read(paths.best).candidate


def test_the_worst_code_is_this_machines():
    codes = [ExitCode.OK, ExitCode.NOTHING_PROVEN, ExitCode.INPUT, ExitCode.MODEL, ExitCode.MACHINE]
    assert [worst(codes[: count + 1]) for count in range(5)] == codes
    assert worst([]) == ExitCode.OK


def test_a_device_that_is_none_is_an_error_of_the_input():
    assert verification.read_device("cpu:1GiB") == DeviceSpec.parse("cpu:1GiB")
    with pytest.raises(InputError) as caught:
        verification.read_device("tpu")
    assert caught.value.about == ("device",)


def test_code_that_comes_with_a_model_runs_only_where_it_is_allowed(proven, executor):
    text = proven.best.read_text()
    assert "trust_remote_code: false" in text
    proven.best.write_text(text.replace("trust_remote_code: false", "trust_remote_code: true"))
    with pytest.raises(InputError) as caught:
        verify(proven.best, None, Limits())
    assert caught.value.about == ("trust_remote_code",)
    assert not executor.folders
    assert verify(proven.best, None, Limits(), trust_remote_code=True).passed


def test_a_proof_that_something_outside_ended_is_tried_again(proven, executor, monkeypatch):
    lost = ProbeResult(answer=Lost(cause="worker", phase="forward", message="killed by SIGKILL"), seconds=1.0)
    run, left = executor.run, [lost, lost]
    monkeypatch.setattr(executor, "run", lambda *a, **k: left.pop() if left else run(*a, **k))
    assert verify(proven.best, None, Limits()).passed
    left[:] = [lost] * 3
    with pytest.raises(ProbeError, match="ended from outside 3 times, the last by: killed by SIGKILL"):
        verify(proven.best, None, Limits())


def test_a_proof_goes_to_the_gpu_that_was_measured():
    assert str(recorded_device(make_best(device="cuda"))) == "cuda:1"
