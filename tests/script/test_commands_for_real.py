"""Commands that train, launched as a run launches them: each oddity has a verdict of its own, and leaves nothing."""

import sys
from pathlib import Path

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.executors.script import ScriptExecutor
from autotune.outcome import Crash, Ok, Oom, Timeout
from autotune.probe.protocol import ProbeRequest
from autotune.script.command import parse_command
from autotune.specs import ModelSpec
from autotune.units import MIB
from tests.e2e.conftest import budget
from tests.script import programs

TOLD = "--bs {micro_batch} --accum {accumulation} {checkpointing:--gc} --out {output}"
COMMAND = f"{sys.executable} train.py {TOLD}"


@pytest.fixture
def folder(tmp_path):
    """Return where a user's script lies, and look afterwards that nothing else does, and that it is as it was."""
    home = tmp_path / "home"
    home.mkdir()
    yield home
    here = str(home)
    assert not [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == here], "a process is left"


def requested(command, device, micro_batch=2, accumulation=2):
    return ProbeRequest(
        kind="train", model=ModelSpec(name="train.py", source="command", command=command),
        candidate=Candidate(micro_batch=micro_batch), seq_len=256, accumulation_steps=accumulation, device="cpu",
        budget=device.facts().budget, seed=0, sample_seconds=0.2, sample_steps=3, folder="", tokens_per_sample=256,
    )  # fmt: skip


def probed(folder, program, *, micro_batch=2, accumulation=2, room=256 * MIB, more=""):
    script = folder / "train.py"
    script.write_text(program)
    device = CpuDevice(budget(room))
    command = parse_command(f"{COMMAND} {more}", None, None, folder)
    request = requested(command, device, micro_batch, accumulation)
    result = ScriptExecutor([device]).run(request, folder.parent / "probe", timeout=100)
    assert [path.name for path in folder.iterdir()] == ["train.py"], "something was left beside the script"
    assert script.read_text() == program
    assert not (folder.parent / "probe" / "scratch").exists()
    return result


def test_a_refusal_that_is_caught_is_out_of_memory(folder):
    outcome = probed(folder, programs.SWALLOWS, micro_batch=4096, accumulation=1).answer
    assert isinstance(outcome, Oom)
    assert "the command caught that" in outcome.message
    assert outcome.requested


def test_a_micro_batch_that_does_not_reach_the_training(folder):
    outcome = probed(folder, programs.IGNORES).answer
    assert isinstance(outcome, Crash)
    assert "took 8 samples on a device, and 2 were asked for" in outcome.message


def test_a_training_that_never_steps(folder):
    outcome = probed(folder, programs.NEVER_STEPS).answer
    assert isinstance(outcome, Crash)
    assert "no optimizer step was seen" in outcome.message


def test_steps_that_the_program_reports_itself(folder):
    outcome = probed(folder, programs.BY_HAND, accumulation=1).answer
    assert isinstance(outcome, Ok), outcome


def test_a_command_that_hangs_at_its_exit_is_not_waited_for(folder):
    outcome = probed(folder, programs.HANGS, more="--steps 2").answer
    assert isinstance(outcome, Timeout), outcome
    assert "hung at its exit" in outcome.message


def test_loader_workers_are_ended_and_their_memory_is_told(folder):
    result = probed(folder, programs.LOADS)
    assert isinstance(result.answer, Ok), result.answer
    assert result.answer.loader_bytes
    assert result.leftovers == 0


def test_torchrun_starts_two_ranks_and_each_has_the_budget(folder):
    (folder / "train.py").write_text(programs.DDP)
    device = CpuDevice(budget(256 * MIB))
    torchrun = Path(sys.executable).parent / "torchrun"
    command = parse_command(f"{torchrun} --nproc-per-node {{gpus}} train.py {TOLD}", None, None, folder)
    request = requested(command, device).model_copy(update={"world_size": 2})
    result = ScriptExecutor([device, device]).run(request, folder.parent / "probe", timeout=200)
    assert isinstance(result.answer, Ok), result.answer
    assert len(result.answer.memory.by_rank) == 2
    assert max(result.answer.memory.by_rank) == result.answer.memory.peak()
    assert result.leftovers == 0


def test_what_accelerates_launcher_starts_is_watched_too(folder):
    """One rank: on a processor it starts several by MPI alone."""
    (folder / "train.py").write_text(programs.NANO)
    device = CpuDevice(budget(256 * MIB))
    launcher = f"{Path(sys.executable).parent / 'accelerate'} launch --cpu --num_processes {{gpus}}"
    told = "--num_machines 1 --mixed_precision no --dynamo_backend no train.py"
    command = parse_command(f"{launcher} {told} {TOLD}", None, None, folder)
    result = ScriptExecutor([device]).run(requested(command, device), folder.parent / "probe", timeout=200)
    assert isinstance(result.answer, Ok), result.answer
    assert result.answer.optimizer_steps >= 2
    assert result.leftovers == 0
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_an_hf_trainer_script_by_its_shipped_mapping(folder):
    (folder / "train.py").write_text(programs.HF_TRAINER)
    device = CpuDevice(budget(512 * MIB))
    quiet = "--save_strategy no --report_to none --use_cpu True --disable_tqdm True --max_steps 100000"
    command = parse_command(f"{sys.executable} train.py {quiet}", "hf_trainer", None, folder)
    candidate = Candidate(micro_batch=2, checkpointing="full", precision="bf16")
    request = requested(command, device).model_copy(update={"candidate": candidate, "tokens_per_sample": 64})
    result = ScriptExecutor([device]).run(request, folder.parent / "probe", timeout=200)
    assert isinstance(result.answer, Ok), result.answer
    assert result.answer.accumulation_steps == 2
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_a_script_is_watched_by_name_where_pythonpath_is_ignored(folder):
    (folder / "train.py").write_text(programs.NANO)
    device = CpuDevice(budget(256 * MIB))
    command = parse_command(f"{sys.executable} -I -m autotune.watch train.py {TOLD}", None, None, folder)
    result = ScriptExecutor([device]).run(requested(command, device), folder.parent / "probe", timeout=100)
    assert isinstance(result.answer, Ok), result.answer
    assert result.answer.optimizer_steps >= 2
