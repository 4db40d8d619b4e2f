"""Blocks and loss of two timelines put together, on a stand-in for a GPU, in a process of its own."""

from pathlib import Path

import pytest

from tests.fresh_process import run_alone


@pytest.mark.timeout(900)  # many traces in one process, on a machine that may be busy
def test_compiled_and_offloaded_blocks_under_another_loss():
    run_alone(Path(__file__).with_name("on_joined.py"))
