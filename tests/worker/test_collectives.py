"""What two real ranks of gloo do is seen whoever asks for it: C++, Python, or an operator on distributed tensors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.collectives import LATE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collectives")
    command = [sys.executable, "-m", "tests.data.collectives", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "seen.json").read_text())


def test_waiting_for_a_rank_that_comes_later_counts(seen):
    (nanoseconds,), under_way = seen["waiting"]
    assert nanoseconds > 0.9 * LATE * 1e9
    assert under_way == 0


@pytest.mark.parametrize(
    ("who", "count"),
    [
        ("c++", 1),  # one bucket
        ("python", 2 + 2 + 2),  # two layers gather forward and backward, and scatter their gradients
        ("functional", 3),
    ],
)
def test_each_collective_is_seen_and_ends(seen, who, count):
    spans, under_way = seen[who]
    assert len(spans) == count
    assert min(spans) > 0
    assert under_way == 0
