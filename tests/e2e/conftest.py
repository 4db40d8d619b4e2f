"""Real runs of the installed command on the CPU device, shared by the tests that look at them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.devices.host import total_memory
from autotune.executors.local import LocalExecutor
from autotune.models import catalog
from autotune.models.resolve import resolve
from autotune.outcome import Ok
from autotune.probe.protocol import Inspection, ProbeRequest
from autotune.units import GIB, MIB

AUTOTUNE = [str(Path(sys.executable).parent / "autotune")]
SHORT = ["--sample-time", "1s", "--proof-time", "2s", "--seq-len", "128"]
"""Short samples."""
QUICK = [*SHORT, "--speed-tolerance", "0.9"]
"""Short samples, and a speed check that other work on the machine cannot fail: speed is not what is tested."""


@dataclass(frozen=True)
class Ended:
    """A command that ran to its end."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)


def autotune(*arguments: str, cwd: Path) -> Ended:
    """Run the command as a user would, with the output going to files."""
    done = subprocess.run([*AUTOTUNE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=280)
    return Ended(done.returncode, done.stdout, done.stderr)


def probes_alive(folder: Path) -> list[int]:
    """Return every process that still runs for a probe of a run under `folder`: supervisor and worker, or a server.

    Those that a server forked have its command line, and its working folder.
    """
    here = str(folder.resolve())
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        said = process.info["cmdline"] or []
        forked = "autotune.worker.warm" in said and process.info["cwd"] == here
        if forked or any(here in part for part in said):
            found.append(process.pid)
    return found


def budget(room: int) -> int:
    """Return a budget with `room` bytes beside libraries and threads, which take more the more cores there are."""
    return CpuDevice(min(total_memory(), 64 * GIB)).minimum() + room


def cpu(size: int) -> str:
    """Return a budget in bytes as `--device` takes it."""
    return f"cpu:{size // MIB}MiB"


ROOMY = cpu(budget(640 * MIB))
"""A budget in which every rung of a tiny model fits."""


def tiny(folder: Path, **changes: int) -> str:
    """Write the configuration of tiny-gpt2 with changes, and return its name."""
    preset = catalog.find("tiny-gpt2")
    assert preset is not None
    (folder / "tiny.json").write_text(json.dumps({**preset.config, **changes}))
    return "./tiny.json"


def wide(folder: Path) -> str:
    """Write a configuration whose logits take most of the memory (16 MiB a sample of 256 tokens); return its name."""
    return tiny(folder, vocab_size=16384, n_embd=16)


@pytest.fixture(scope="session")
def tight(tmp_path_factory) -> str:
    """Return a device on which 4 samples train and are proven and the goal's 8 do not fit, from what 4 take here.

    So growth without predictions meets an OOM on any machine: no size between these two is useful, and no headroom is
    asked for that 4 samples could miss. They are measured in the precision that a run takes on this processor.
    """
    folder = tmp_path_factory.mktemp("measured")
    executor = LocalExecutor(CpuDevice(budget(2 * GIB)))
    request = ProbeRequest(
        kind="inspect", model=resolve(wide(folder), base=folder), candidate=Candidate(micro_batch=4), seq_len=256,
        accumulation_steps=2, device="cpu", budget=budget(2 * GIB), seed=0, sample_seconds=0.1, sample_steps=3,
        folder="", time_device=True,
    )  # fmt: skip
    inspection = executor.run(request, folder / "inspection", timeout=280).answer
    assert isinstance(inspection, Inspection), inspection
    assert inspection.speed is not None
    precision = "fp32" if inspection.speed.emulates("bf16") else "bf16"
    measured = Candidate(micro_batch=4, precision=precision)
    request = request.model_copy(update={"kind": "prove", "candidate": measured})
    outcome = executor.run(request, folder / "proof", timeout=280).answer
    assert isinstance(outcome, Ok), outcome
    memory = outcome.memory
    return cpu(memory.peak() + memory.allocated // 4)  # 8 samples take twice what is allocated


@pytest.fixture(scope="session")
def winner(tmp_path_factory, tight) -> tuple[Path, Ended]:
    """Return the working folder and the output of a run without predictions, which meets real OOMs."""
    return _shared_run(tmp_path_factory.mktemp("winner"), tight, "--no-predict")


@pytest.fixture(scope="session")
def foreseen(tmp_path_factory, tight) -> tuple[Path, Ended]:
    """Return the same of that run with predictions."""
    return _shared_run(tmp_path_factory.mktemp("foreseen"), tight)


def _shared_run(folder: Path, device: str, *more: str) -> tuple[Path, Ended]:
    ended = autotune(
        "run", "--model", wide(folder), "--target-global-batch", "2Ki", "--device", device, "--headroom", "0", *SHORT,
        "--seq-len", "256", "--strategy", "graph", *more, "--json", cwd=folder,
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    return folder, ended
