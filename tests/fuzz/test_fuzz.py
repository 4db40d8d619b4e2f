"""Whatever is written into a file or an option: a documented exit code, one message, bounded time and memory.

`make fuzz` does the same at length; see `python -m tests.fuzz --help`.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.kinds import kinds, play
from tests.fuzz.surface import complaint, seams

EXAMPLES = 200
"""Of each kind; one of them in a process of its own."""
KINDS = kinds()


@pytest.mark.timeout(1200)  # a few seconds each on a machine that does nothing else
@pytest.mark.parametrize("kind", KINDS)
def test_no_input_ends_in_a_traceback(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    numbers = itertools.count(1)

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(KINDS[kind])
    def holds(example):
        ended = play(example, tmp_path / "work", alone=next(numbers) == EXAMPLES // 2)
        assert complaint(ended) is None, (
            f"{complaint(ended)}\nautotune {' '.join(map(repr, example.arguments))}"
        )

    with seams():
        holds()
