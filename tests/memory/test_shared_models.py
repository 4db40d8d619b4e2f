"""Passes that are traced on a model that served others are those of a model of their own, in a process of its own."""

from pathlib import Path

import pytest

from tests.fresh_process import run_alone


@pytest.mark.timeout(900)  # many traces in one process, on a machine that may be busy
def test_shared_models():
    run_alone(Path(__file__).with_name("on_shared_models.py"))
