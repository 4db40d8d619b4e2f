"""A vendor's library is behind one protocol: nothing else about devices knows what it is called."""

from __future__ import annotations

from pathlib import Path

import autotune.devices
from autotune.devices.monitor.monitor import Monitor
from tests.fakes.nvml import FakeNvml

FOLDER = Path(autotune.devices.__file__).parent
OF_A_VENDOR = {"monitor/nvml.py", "monitor/find.py"}
DATA_SHEETS = {"hardware.py"}
"""A column of the table of GPUs is the compute capability, for what is published by it."""


def test_nothing_else_speaks_of_nvml_or_of_compute_capabilities() -> None:
    for path in sorted(FOLDER.rglob("*.py")):
        name = path.relative_to(FOLDER).as_posix()
        if name in OF_A_VENDOR:
            continue
        text = path.read_text("utf-8").lower().replace("`nvml`", "")  # an example in the protocol
        assert "nvml" not in text, name
        if name not in DATA_SHEETS:
            assert "capability" not in text, name


def test_a_monitor_is_all_that_a_gpu_needs() -> None:
    monitor: Monitor = FakeNvml(library="another vendor's")
    assert monitor.gpus()
