"""A test asserts a reason by its type, fields or code; by its words only where what a user reads is its subject."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]

WORDED = {
    # what to do next: the flag, the file, the command or the nearest name is in the sentence
    "command_line/test_api.py": 3,
    "devices/test_cpu.py": 1,
    "devices/test_find.py": 4,
    "devices/test_gpu.py": 2,
    "devices/test_hardware.py": 2,
    "devices/test_rapl.py": 1,
    "devices/test_recorded_grid.py": 5,
    "estimation/test_estimate.py": 3,
    "executors/test_replay.py": 2,
    "exports/test_exports.py": 2,
    "memory/on_fake_cuda.py": 2,
    "memory/test_trace.py": 1,
    "numerics/test_activations.py": 1,
    "numerics/test_frozen.py": 2,
    "numerics/test_techniques.py": 1,
    "reporting/test_tradeoffs.py": 1,
    "run/test_journal.py": 1,
    "run/test_loop_failures.py": 3,
    "run/test_loop_objectives.py": 1,
    "run/test_loop_refusals.py": 1,
    "run/test_verify.py": 2,
    "script/test_command.py": 2,
    "sweep/test_controller.py": 1,
    "sweep/test_file.py": 2,
    "sweep/test_report.py": 1,
    "timeline/test_depth.py": 2,
    "words/test_accumulation.py": 2,
    "words/test_interruption.py": 1,
    "words/test_lengths.py": 2,
    "worker/test_blocks.py": 1,
    "worker/test_loading.py": 1,
    "worker/test_model.py": 4,
    # what was seen of a batch, told to whoever made it
    "worker/test_batch_check.py": 3,
    # ValueErrors, which have nothing but their words: of validators, and of a tool of the tests
    "docs/test_long_record.py": 2,
    "timeline/test_packed.py": 3,
    "words/test_bounds.py": 1,
    "words/test_units.py": 4,
}
"""How many sentences each file matches, at most. Each is matched once, where it is the subject of its test."""


def worded(file: Path) -> int:
    """Return the calls in a file that match the words of an exception."""
    return sum(
        keyword.arg == "match" and not (isinstance(keyword.value, ast.Name) and keyword.value.id == "match")
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call)
        for keyword in call.keywords
    )


def test_reasons_are_asserted_by_code_and_not_by_their_words():
    """Where this fails: assert the exception's type, `about`, `cause`, `kind`, ... instead, or give it one."""
    found = {str(file.relative_to(TESTS)): worded(file) for file in sorted(TESTS.rglob("*.py"))}
    assert {name: count for name, count in found.items() if count > WORDED.get(name, 0)} == {}
    assert {name for name, most in WORDED.items() if found.get(name, 0) < most} == set(), "lower the number"
