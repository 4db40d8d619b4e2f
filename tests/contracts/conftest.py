"""What the contracts of probes share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from tests.contracts.launched import (
    Run,
    launching_misbehaviour,
    marked,
)


@pytest.fixture(params=["cold", "warm"])
def launcher(request: pytest.FixtureRequest) -> str:
    """How workers are launched."""
    return str(request.param)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str) -> Iterator[Run]:
    """Launch a worker with a behaviour; afterwards no process of the test may be alive."""
    monkeypatch.setenv("TESTED", str(tmp_path))

    def launch_one(
        behaviour: str, *, timeout: float = 60, data_limit: int | None = None, **more: object
    ) -> Report:
        return launches(
            behaviour, ProbeFolder(tmp_path / "probe"), data_limit=data_limit, timeout=timeout,
            environment={"TOLD": "yes", "CUDA_VISIBLE_DEVICES": "GPU-7"}, **more,
        )  # fmt: skip

    before = len(os.listdir("/proc/self/fd"))
    with launching_misbehaviour(launcher) as launches:
        yield launch_one
    assert marked() == []
    assert len(os.listdir("/proc/self/fd")) == before
