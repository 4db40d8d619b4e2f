"""The worker as a process: what it says over its pipe, for every way in which a probe can end."""

import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.outcome import Crash, NonFinite, Ok, Oom
from autotune.probe.protocol import MESSAGE, DiskFull, Inspection, ProbeRequest, Progress, Result
from autotune.racing import Incumbent
from autotune.specs import ModelSpec
from autotune.units import GIB, MIB
from autotune.worker.measuring.prove import LOSSES_KEPT
from tests.worker import forked

MODELS = Path(__file__).parents[1] / "data"
CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 512, "n_layer": 4, "n_head": 8,
    "n_positions": 128, "vocab_size": 4000, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
PARAMETERS = 4000 * 512 + 128 * 512 + 4 * (12 * 512**2 + 13 * 512) + 2 * 512
"""Of CONFIG: embeddings (shared with the head), positions, four blocks of 12 h^2 + 13 h, the final norm."""
LIMIT = 4 * GIB
ENVIRONMENT = {**CpuDevice(LIMIT).environment(Candidate()), "OMP_NUM_THREADS": "1"}


@dataclass
class Run:
    messages: list = field(default_factory=list)
    returncode: int = 0
    stderr: str = ""
    folder: Path = Path()

    @property
    def outcome(self):
        assert self.messages, self.stderr
        return self.messages[-1].outcome

    @property
    def progress(self):
        return [message for message in self.messages if isinstance(message, Progress)]


@dataclass
class Worker:
    """One that runs, and the reading ends of its pipes."""

    process: Any
    messages: int
    stderr: int

    def ended(self, folder=Path()):
        """Return what it said until it ended."""
        with os.fdopen(self.messages, "rb") as pipe:
            lines = pipe.read().splitlines()
        return Run([MESSAGE.validate_json(line) for line in lines], *self.left(), folder)

    def left(self):
        """Return its exit code and its errors, when it has ended."""
        with os.fdopen(self.stderr) as pipe:
            stderr = pipe.read()
        if isinstance(self.process, subprocess.Popen):
            return self.process.wait(), stderr
        self.process.join()
        return self.process.exitcode, stderr


def start(folder, kind="train", model=None, limit=LIMIT, file_limit=None, cold=False, **changes):
    """Start a worker, forked from one that has imported unless it is to start cold."""
    candidate = Candidate(**{name: changes.pop(name) for name in set(changes) & set(Candidate.model_fields)})
    values = {
        "seq_len": 16, "accumulation_steps": 4, "device": "cpu", "budget": limit, "seed": 0,
        "sample_seconds": 0.2, "sample_steps": 3, **changes,
    }  # fmt: skip
    request = ProbeRequest(
        kind=kind, candidate=candidate, folder=str(folder), **values,
        model=model if isinstance(model, ModelSpec)
        else ModelSpec(name=f"worker_models:{model}", source="function", path=str(MODELS)) if model
        else ModelSpec(name="small", source="config", config=CONFIG),
    )  # fmt: skip
    path = folder / "request.json"
    path.write_text(request.model_dump_json())
    limits = {resource.RLIMIT_DATA: limit}
    if file_limit is not None:
        limits[resource.RLIMIT_FSIZE] = file_limit
    return spawn(path, limits) if cold else Worker(*forked.start(path, ENVIRONMENT, limits))


def spawn(path, limits):
    def restrict():
        for limit, size in limits.items():
            resource.setrlimit(limit, (size, resource.getrlimit(limit)[1]))

    read, write = os.pipe()
    said, says = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.worker", str(path), str(write)], pass_fds=(write,),
        env={**os.environ, **ENVIRONMENT}, preexec_fn=restrict, stderr=says,
    )  # fmt: skip
    os.close(write)
    os.close(says)
    return Worker(process, read, said)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def run(**changes):
        folder = tmp_path_factory.mktemp("probe")
        return start(folder, **changes).ended(folder)

    return run


@pytest.fixture(scope="module")
def trained(run):
    return run(precision="fp32")


@pytest.fixture(scope="module")
def proven(run):
    """A proof, cold as all of them are."""
    return run(kind="prove", accumulation_steps=3, precision="bf16", sample_seconds=4, cold=True)


def test_a_probe_ends_with_one_verdict_and_nothing_left_behind(trained):
    assert isinstance(trained.outcome, Ok)
    assert trained.returncode == 0
    assert [message.type for message in trained.messages].count("result") == 1
    assert [entry.name for entry in trained.folder.iterdir()] == ["request.json"]


def test_every_phase_is_told_when_it_is_entered(trained):
    told = [(progress.phase, progress.step) for progress in trained.progress]
    assert told[:2] == [("start", 0), ("start", 0)]
    micro_step = [("forward", 1), ("backward", 1)]
    assert told[2:6] == [("build", 0), *micro_step, ("optimizer", 1)], "the first step has one micro-step"
    assert told[6:11] == [("forward", 2), ("backward", 2)] * 2 + [("optimizer", 2)], "the others have two"
    assert told[-1][1] >= 3, "at least three optimizer steps"


def test_the_baseline_is_told_once_before_the_build(trained):
    told = [progress.baseline for progress in trained.progress]
    memory = trained.outcome.memory
    assert memory.baseline < told[1] < memory.reserved, "what is never touched counts too, the model does not"
    assert [baseline for baseline in told if baseline is not None] == [told[1]]


def test_memory_is_split_exactly(trained):
    memory = trained.outcome.memory
    parts = memory.breakdown
    assert parts.parameters == pytest.approx(4 * PARAMETERS, rel=0.001)
    assert parts.gradients == 4 * PARAMETERS
    assert parts.optimizer_state == pytest.approx(8 * PARAMETERS, rel=0.001)
    assert memory.allocated == sum(value for _, value in parts)
    # What the kernel counted is what the tensors hold, up to small activations and the libraries' workspaces.
    assert 0 < parts.activations + parts.other < 4 * PARAMETERS
    assert memory.device_peak == pytest.approx(memory.baseline + memory.allocated, abs=MIB)
    assert memory.device_peak < memory.reserved < memory.budget


def test_each_phase_reports_its_memory(trained):
    phases = {report.phase: report for report in trained.outcome.phases}
    assert list(phases) == ["start", "build", "forward", "backward", "optimizer"]
    weights = 4 * PARAMETERS
    # The interpreter's own memory comes and goes by about a MiB.
    assert phases["build"].end == pytest.approx(weights, abs=3 * MIB)
    assert phases["build"].peak < weights + 12 * MIB, "the model, and one matrix while it is drawn"
    assert phases["forward"].end > 4 * weights, (
        "parameters, two moments, and gradients of the first micro-step"
    )
    assert phases["optimizer"].end < 4 * weights, "the gradients are gone after the step"
    assert max(phases[phase].peak for phase in ("forward", "backward")) <= trained.outcome.memory.allocated
    assert all(report.seconds > 0 for report in phases.values())


def test_the_parts_of_a_global_step_are_timed(trained):
    outcome = trained.outcome
    timing = outcome.timing
    assert outcome.accumulation_steps == 2
    assert timing.micro_step == timing.last_micro_step
    assert timing.micro_step.count == 2 * timing.optimizer_step.count >= 4
    assert min(timing.micro_step.mean, timing.last_micro_step.mean, timing.optimizer_step.mean) > 0
    assert timing.micro_step.half_width is not None


def test_the_baseline_has_all_that_is_imported_to_measure(trained):
    """What came behind it was counted as tensors: 1 or 3 MiB, by the launch."""
    start = next(entry for entry in trained.outcome.phases if entry.phase == "start")
    assert start.peak < MIB // 2


def test_losses_are_recorded_for_every_optimizer_step_and_fall(trained):
    losses = trained.outcome.losses
    assert trained.outcome.attention == "sdpa"
    assert trained.outcome.attention_kernels == ("math",), (
        "GPT-2 has dropout, a processor's flash kernel has none"
    )
    assert len(losses) == trained.outcome.timing.optimizer_step.count + 2, "the warm-up takes two"
    assert losses[-1] < losses[0]


def test_a_probe_that_cannot_win_ends_early_with_a_bound_and_the_memory_of_any_other(run):
    # A step takes long enough for the warm-up's to be believed.
    long = {"precision": "fp32", "micro_batch": 32}
    faster = Incumbent(seconds=1e-6, deviation=0.02, degrees=4, drift=0.02)
    outcome = run(**long, sample_seconds=60, sample_steps=20, to_beat=faster).outcome
    assert outcome.timing is None
    assert outcome.bound.seconds > outcome.bound.beaten_by
    assert (outcome.bound.steps, outcome.step_seconds, len(outcome.losses)) == (0, (), 2)
    measured = run(**long).outcome
    assert outcome.memory.allocated == pytest.approx(measured.memory.allocated, rel=0.02)
    assert outcome.memory.breakdown.optimizer_state == measured.memory.breakdown.optimizer_state


def test_a_proof_runs_whole_global_steps_then_evaluates_and_saves(proven):
    outcome = proven.outcome
    assert isinstance(outcome, Ok)
    assert outcome.accumulation_steps in {2, 3}, "all three where this machine has the time"
    assert outcome.optimizer_steps >= 5
    assert len(outcome.losses) == min(outcome.optimizer_steps, LOSSES_KEPT)
    (shuffled,) = outcome.stresses
    assert (shuffled.name, shuffled.skipped) == ("shuffled lengths", "")
    assert 0 < shuffled.peak <= outcome.memory.peak()
    assert outcome.losses[-1] < outcome.losses[0]
    assert outcome.evaluation_loss < outcome.losses[0]
    assert outcome.checkpoint_bytes == pytest.approx(12 * PARAMETERS, rel=0.01)
    assert outcome.evaluation_micro_batch in {1, 2, 4, 8, 16}
    assert not list(proven.folder.glob("*.pt")), "the checkpoint is deleted"


def test_a_proof_measures_evaluation_and_checkpoint_apart_from_training(proven, trained):
    phases = {report.phase: report for report in proven.outcome.phases}
    assert list(phases)[-2:] == ["evaluation", "save"]
    assert phases["save"].peak < phases["evaluation"].end + 8 * MIB, "saving copies nothing into memory"
    ours, theirs = proven.outcome.memory, trained.outcome.memory
    assert ours.allocated == pytest.approx(theirs.allocated, rel=0.1), "training alone counts there"
    assert ours.device_peak >= ours.baseline + phases["evaluation"].peak


def test_a_proof_that_has_no_time_for_whole_steps_is_cut_to_two_micro_steps(run):
    outcome = run(kind="prove", accumulation_steps=10_000, sample_seconds=0.01).outcome
    assert outcome.accumulation_steps == 2
    assert len(outcome.losses) == 5  # two of the warm-up and three whole ones


def test_an_inspection_finds_the_model_without_building_it(run):
    answer = run(kind="inspect").messages[-1]
    assert isinstance(answer, Inspection)
    facts = answer.facts
    assert facts.parameters == facts.trainable_parameters == facts.active_parameters == PARAMETERS
    assert (facts.layers, facts.hidden, facts.blocks, facts.block_class) == (4, 512, 4, "GPT2Block")
    assert (facts.task, facts.model_class, facts.tokens_per_sample) == ("causal-lm", "GPT2LMHeadModel", 16)


WEIGHTS = 4 * PARAMETERS


@pytest.mark.parametrize(
    ("phase", "beyond", "micro_batch"),
    [
        ("build", WEIGHTS // 2, 1),
        ("forward", WEIGHTS + 16 * MIB, 64),
        ("backward", WEIGHTS + WEIGHTS // 2, 1),
        ("optimizer", 3 * WEIGHTS, 1),
    ],
)
def test_memory_that_runs_out_is_told_with_its_phase(run, trained, phase, beyond, micro_batch):
    libraries = trained.outcome.memory.reserved - trained.outcome.memory.allocated
    refused = run(limit=libraries + beyond, micro_batch=micro_batch, precision="fp32")
    outcome = refused.outcome
    assert isinstance(outcome, Oom)
    assert (outcome.where, outcome.phase) == ("device", phase)
    assert outcome.requested > 0
    assert 0 <= outcome.free <= outcome.requested
    assert "can't allocate memory" in outcome.message
    assert "anonymous memory" in (refused.folder / "memory_summary.txt").read_text()
    assert refused.returncode == 0


@pytest.mark.parametrize("mebibytes", [64, 230, 300])
def test_a_budget_below_what_the_libraries_need_is_a_refusal_at_the_start(run, mebibytes):
    """Native code that is refused memory while it is loaded aborts, or (OpenBLAS) asks again without an end."""
    outcome = run(limit=mebibytes * MIB, cold=True).outcome
    assert isinstance(outcome, Oom)
    assert (outcome.phase, outcome.where, outcome.free) == ("start", "device", mebibytes * MIB)
    assert outcome.requested > outcome.free


def test_a_budget_below_what_the_imports_of_a_users_module_take_does_not_hang(run, tmp_path):
    (tmp_path / "imports.py").write_text(
        f"held = bytearray({2 * GIB})\n"  # native code would ask again and again
        "del held\n"
        "def build():\n    raise LookupError('imported')\n"
    )
    spec = ModelSpec(name="imports:build", source="function", path=str(tmp_path))
    outcome = run(limit=2 * GIB, model=spec).outcome
    assert isinstance(outcome, Crash), outcome
    assert "imported" in outcome.message


def test_what_cannot_be_traced_leaves_the_others_of_its_worker(run, tmp_path):
    (tmp_path / "in_place.py").write_text(
        "from torch import nn, ones\n"
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.product = nn.Linear(8, 8, bias=False)\n"
        "    def forward(self, hidden):\n"
        "        result = self.product(hidden)\n"
        "        result += hidden\n"
        "        return result.relu()\n"
        "class Net(nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x).sum()\n"
        "def build():\n"
        "    blocks = (Block() for _ in range(3))\n"
        "    return Net(*blocks), lambda rows, tokens: {'x': ones(rows, tokens, 8)}\n"
    )
    spec = ModelSpec(name="in_place:build", source="function", path=str(tmp_path), block_class="Block")
    first, *others = (Candidate(precision="fp32", checkpointing=how) for how in ("selective", "none", "full"))
    told = run(kind="trace", model=spec, limit=8 * GIB, also=others, **first.model_dump()).messages[-1]
    assert [rung.candidate for rung in told.rungs if rung.reason] == [first], [
        rung.reason for rung in told.rungs
    ]
    assert {rung.candidate for rung in told.rungs if rung.file} == {*others}


def test_a_full_disk_is_told_as_such(run):
    refused = run(kind="prove", file_limit=4 * MIB, sample_seconds=0.01)
    answer = refused.messages[-1]
    assert isinstance(answer, DiskFull)
    assert (answer.phase, answer.where) == ("save", str(refused.folder))
    assert answer.needed == pytest.approx(12 * PARAMETERS, rel=0.01)
    assert answer.free > 0
    assert "File too large" in answer.message


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("nan", NonFinite(phase="forward", step=1, what="loss")),
        ("steep", NonFinite(phase="backward", step=1, what="gradient")),
    ],
)
def test_what_is_not_finite_is_told_with_its_place(run, model, expected):
    assert run(model=model).outcome == expected


@pytest.mark.parametrize("kind", ["train", "inspect"])
def test_a_bug_in_the_users_model_keeps_its_traceback(run, kind):
    outcome = run(model="raising", kind=kind).outcome
    assert isinstance(outcome, Crash)
    assert (outcome.reason, outcome.phase) == ("exception", "forward")
    assert outcome.message == "ValueError: a bug of mine"
    assert 'raise ValueError("a bug of mine")' in outcome.traceback


def test_native_code_that_dies_says_where_python_was(run):
    died = run(model="dying")
    assert died.returncode == -signal.SIGSEGV
    assert not any(isinstance(message, Result) for message in died.messages)
    assert re.search(r"worker_models.py\", line \d+ in forward", died.stderr)


def test_a_model_that_exits_is_not_a_probe_that_ended(run):
    outcome = run(model="exiting").outcome
    assert (outcome.kind, outcome.reason) == ("crash", "exception")
    assert outcome.message == "SystemExit: 3"


def test_a_refusal_that_a_library_wraps_is_still_a_refusal(run):
    outcome = run(model="wrapping").outcome
    assert isinstance(outcome, Oom)
    assert outcome.requested == 2**52


def test_a_request_of_another_protocol_is_refused(tmp_path):
    path = tmp_path / "request.json"
    path.write_text('{"protocol": 2, "kind": "train"}')
    outcome = spawn(path, {}).ended().outcome
    assert (outcome.kind, outcome.reason, outcome.phase) == ("crash", "protocol", "start")


def test_a_worker_that_nobody_listens_to_ends_quietly(tmp_path):
    worker = start(tmp_path)
    os.close(worker.messages)
    code, stderr = worker.left()
    assert code == 0
    assert "Traceback" not in stderr


def test_loader_workers_are_the_host_s_and_not_the_budget_s(tmp_path):
    """Each of two takes 400 MiB, and the probe may take little more than its libraries."""
    limit = 900 * MIB
    run = start(
        tmp_path, model="loading", limit=limit, precision="fp32", num_workers=2, accumulation_steps=1
    ).ended()
    assert isinstance(run.outcome, Ok), run.outcome
    assert run.outcome.memory.peak() < limit
    assert run.outcome.loader_bytes > 0
