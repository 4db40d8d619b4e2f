"""The worker on a GPU: the caching allocator's numbers, a real out-of-memory error, and its evidence."""

import os
import pickle
import subprocess
import sys

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Ok, Oom
from autotune.probe.protocol import MESSAGE, ProbeRequest
from autotune.specs import ModelSpec
from autotune.units import GIB, MIB

pytestmark = pytest.mark.gpu

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1024, "n_layer": 4, "n_head": 16,
    "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
PARAMETERS = (50257 + 1024) * 1024 + 4 * (12 * 1024**2 + 13 * 1024) + 2 * 1024


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA GPU that torch can use")
    budget = torch.cuda.get_device_properties(0).total_memory

    def run(kind="train", **candidate):
        folder = tmp_path_factory.mktemp("probe")
        request = ProbeRequest(
            kind=kind, model=ModelSpec(name="small", source="config", config=CONFIG),
            candidate=Candidate(**candidate), seq_len=1024, accumulation_steps=4, device="cuda:0", budget=budget,
            seed=0, sample_seconds=5, sample_steps=10, folder=str(folder),
        )  # fmt: skip
        path = folder / "request.json"
        path.write_text(request.model_dump_json())
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.worker", str(path), str(write)], pass_fds=(write,),
            env={**os.environ, "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        )  # fmt: skip
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            messages = [MESSAGE.validate_json(line) for line in pipe.read().splitlines()]
        process.wait()
        return messages[-1].outcome, folder

    return run


def test_the_four_numbers_of_memory(run):
    outcome, folder = run()
    assert isinstance(outcome, Ok)
    memory = outcome.memory
    assert memory.allocated <= memory.reserved <= memory.device_peak < memory.budget
    assert 0 < memory.baseline < 4 * GIB, "the CUDA context"
    assert memory.allocator_retries == 0
    parts = memory.breakdown
    assert parts.gradients == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert parts.optimizer_state == pytest.approx(8 * PARAMETERS, rel=0.01)
    assert parts.activations > 100 * MIB
    assert not (folder / "snapshot.pickle").exists()
    assert {report.phase for report in outcome.phases} >= {"build", "forward", "backward", "optimizer"}
    assert outcome.losses[-1] < outcome.losses[0]


@pytest.mark.parametrize("offload", ["optimizer", "full"])
def test_what_is_offloaded_is_not_counted_on_the_device(run, offload):
    outcome, _ = run(offload=offload)
    assert isinstance(outcome, Ok)
    parts = outcome.memory.breakdown
    assert parts.optimizer_state < MIB
    assert (parts.parameters < 4 * PARAMETERS) == (offload == "full")


def test_a_proof_evaluates_and_saves(run):
    outcome, folder = run(kind="prove")
    assert isinstance(outcome, Ok)
    assert outcome.accumulation_steps == 4
    assert outcome.checkpoint_bytes == pytest.approx(12 * PARAMETERS, rel=0.05)
    assert [report.phase for report in outcome.phases][-2:] == ["evaluation", "save"]
    assert not list(folder.glob("*.pt"))


def test_a_real_refusal_is_told_and_its_evidence_kept(run):
    outcome, folder = run(micro_batch=20_000)
    assert isinstance(outcome, Oom)
    assert (outcome.where, outcome.phase) == ("device", "forward")
    assert outcome.requested > outcome.free >= 0
    assert "CUDA" in (folder / "memory_summary.txt").read_text()
    with (folder / "snapshot.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    events = [event["action"] for trace in snapshot["device_traces"] for event in trace]
    assert "oom" in events
    assert snapshot["segments"]
