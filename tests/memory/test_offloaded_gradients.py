"""Gradients that leave a GPU, in a process of its own."""

from pathlib import Path

from tests.fresh_process import run_alone


def test_offloaded_gradients():
    run_alone(Path(__file__).with_name("on_offloaded_gradients.py"))
