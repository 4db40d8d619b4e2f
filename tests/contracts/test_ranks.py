"""Probes of two real ranks: they train together, and when one fails all end, with its verdict and nothing left.

Here they are forked; `test_cold_ranks.py` starts the same ones cold, and proves, which is always cold.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.executors.ranks import RanksExecutor
from autotune.outcome import Crash, Lost, Ok, Oom, Timeout
from autotune.probe.launch import MARK, Launcher
from autotune.probe.protocol import Inspection, ProbeRequest
from autotune.probe.warm import WarmLauncher
from autotune.specs import ModelSpec
from autotune.units import GIB, MIB
from tests.data.requests import family

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def model(function: str) -> ModelSpec:
    return ModelSpec(name=f"tests.data.faulty_ranks:{function}", source="function", path=str(ROOT))


LARGE = family("llama", vocab_size=2_000_000)
"""Its embeddings, of 488 MiB, are larger than SMALL leaves room for beside the libraries."""
SMALL = 512 * MIB


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """Give each rank one thread, so that its libraries take the same on a machine with many cores, and mark them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("TESTED", uuid.uuid4().hex)
        yield


@pytest.fixture(scope="module")
def launcher(environment: None) -> Iterator[Launcher]:
    """What launches each rank."""
    with WarmLauncher() as warm:

        def launch_warm(asked, *where, **options):
            report = warm(asked, *where, **options)
            assert report.launcher == "warm", report.cold_because
            return report

        yield launch_warm


def run(
    launcher: Launcher,
    folder: Path,
    named: str | ModelSpec,
    *,
    timeout: float = 120,
    kind: str = "train",
    devices: int = 2,
    nodes: int = 1,
    first: int = GIB,
    **candidate: object,
):
    fields = {"sharding": "fsdp2", "precision": "fp32", **candidate}
    ranks = 1 if kind == "inspect" else devices
    spec = model(named) if isinstance(named, str) else named
    request = ProbeRequest.model_validate(
        {
            "kind": kind, "model": spec, "candidate": Candidate.model_validate(fields), "seq_len": 16,
            "accumulation_steps": 2, "device": "cpu", "world_size": ranks, "nodes": min(nodes, ranks),
            "budget": GIB, "seed": 0,
            "sample_seconds": 0.1, "sample_steps": 3, "folder": "",
        }
    )  # fmt: skip
    budgets = [first, *[GIB] * (devices - 1)]
    executor = RanksExecutor([CpuDevice(budget, devices) for budget in budgets], launcher, nodes)
    finding = executor.run(request, folder, timeout=timeout)
    alive = []
    for process in psutil.process_iter():
        try:
            found = process.environ()
            if found.get("TESTED") == os.environ["TESTED"] and found.get(MARK, "0" * 32) != "0" * 32:
                alive.append(process.pid)
        except psutil.Error:
            continue
    assert alive == []
    assert not (folder / "rendezvous").exists()
    return finding


@pytest.mark.parametrize(
    ("sharding", "kind", "devices", "nodes"), [("ddp", "train", 2, 1), ("hsdp", "train", 4, 2)]
)
def test_ranks_train_together_and_give_one_verdict(launcher, tmp_path, sharding, kind, devices, nodes):
    check_verdict_of_all(launcher, tmp_path, sharding, kind, devices, nodes)


def check_verdict_of_all(launcher, tmp_path, sharding, kind, devices, nodes):
    finding = run(launcher, tmp_path, "fine", kind=kind, sharding=sharding, devices=devices, nodes=nodes)
    assert isinstance(finding.answer, Ok), finding.answer
    assert len(finding.answer.losses) >= 4
    assert 0 < finding.answer.memory.peak() <= GIB
    if sharding == "ddp":  # two micro-steps, of which DDP reduces in the last
        heard, timing = finding.answer.communication, finding.answer.timing
        assert heard.micro_step == heard.optimizer_step == 0
        assert 0 < heard.last_micro_step < 10 * timing.last_micro_step.mean
    assert {path.name for path in tmp_path.iterdir()} == {f"rank{rank}" for rank in range(devices)}


def test_a_model_is_looked_at_by_one_process(launcher, tmp_path):
    assert isinstance(run(launcher, tmp_path, "fine", kind="inspect").answer, Inspection)
    assert not (tmp_path / "rank0").exists()


def test_an_oom_of_one_rank_is_the_probes_with_its_rank(launcher, tmp_path):
    answer = run(launcher, tmp_path, "oom").answer
    assert isinstance(answer, Oom), answer
    assert (answer.rank, answer.requested) == (1, 4 << 40)


def test_an_oom_of_the_rank_that_builds_for_all_ends_those_that_wait_for_it(launcher, tmp_path):
    answer = run(launcher, tmp_path, LARGE, first=SMALL).answer
    assert isinstance(answer, Oom), answer
    assert (answer.rank, answer.phase) == (0, "build"), answer


def test_a_rank_that_is_killed_ends_the_group(launcher, tmp_path):
    answer = run(launcher, tmp_path, "killed", nodes=2).answer
    assert isinstance(answer, Lost)  # by something outside: nothing is known of the candidate
    assert "rank 1" in answer.message
    assert "SIGKILL" in answer.message


def test_a_rank_that_leaves_early_ends_the_group(launcher, tmp_path):
    answer = run(launcher, tmp_path, "leaves").answer
    assert isinstance(answer, Crash)
    assert answer.reason == "exit"
    assert answer.message.startswith("rank 1")


def test_a_rank_that_hangs_ends_the_group_at_the_deadline(launcher, tmp_path):
    answer = run(launcher, tmp_path, "hangs", timeout=12).answer
    assert isinstance(answer, Timeout), answer
