"""What one trace compiled serves the next, in a process of its own."""

from pathlib import Path

from tests.fresh_process import run_alone


def test_shared_programs():
    run_alone(Path(__file__).with_name("on_shared_programs.py"))
