"""The bench of faults: its smallest parts run, and what it looks for is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from autotune.candidate import Candidate
from autotune.outcome import Lost
from autotune.run.events import Finished, RematchStarted, Started
from autotune.run.record import Record
from autotune.testing.arithmetic import ok
from autotune.trial import RematchFinished
from benchmarks.fault_soak import soak
from benchmarks.fault_trial import Trial, repeated, undisturbed

ROOT = Path(__file__).parents[2]


def bench(folder: Path, *options: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults", *options, "--record", "--out", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "faults.json").read_text())["rows"]


def test_a_tuner_killed_at_a_line_and_one_killed_with_its_supervisor_end_in_the_same_winner(tmp_path):
    rows = bench(tmp_path, "--only", "lines", "supervisors", "--named", "KILL", "line 4 ")
    assert [row["fault"] for row in rows] == [
        f"SIGKILL after line 4 ({rows[0]['fault'].split('(')[1].split(')')[0]}){twice}"
        for twice in ("", ", twice")
    ]
    (row,) = bench(tmp_path, "--only", "supervisors", "--named", "supervisor and tuner killed in train")
    assert row["executor"] == "processes"
    assert row["misses"] == []
    assert row["seconds"] > 0


def test_another_winner_and_a_file_too_many_are_misses(tmp_path):
    expected = undisturbed("arithmetic", tmp_path / "expected")
    trial = Trial("arithmetic", tmp_path / "trial")
    (trial.root / "left").touch()
    slower = expected.best.model_copy(update={"candidate": Candidate(micro_batch=2)})
    trial.ends_as(type(expected)(slower, expected.trials[1:], (), (), expected.files))
    said = " ".join(trial.misses)
    assert "another winner" in said
    assert "other trials" in said
    assert "files: left" in said


def test_what_is_done_twice_is_found_and_a_retry_of_what_was_lost_is_none():
    started = Started(number=1, candidate=Candidate(), node="n", why="w", time="t")
    lost = Lost(cause="tuner", phase="start", message="gone")
    finished = [Finished(number=1, outcome=outcome, seconds=1) for outcome in (lost, ok(1))]
    assert repeated(Record.of([started, finished[0], started, finished[1]])) == []
    assert repeated(Record.of([started, finished[1], started])) == ["probe 1 after it was finished"]


def test_a_rematch_of_another_round_is_no_repetition():
    def begun(round_):
        return RematchStarted(number=1, round=round_, finalists=(1, 2), time="t")

    def ended(round_):
        return RematchFinished(number=1, round=round_, finalists=(1, 2), outcome=ok(1), seconds=1)

    assert repeated(Record.of([begun(1), ended(1), begun(2), ended(2)])) == []
    found = repeated(Record.of([begun(1), ended(1), begun(1)]))
    assert found == ["rematch 1 in round 1 after it was finished"]


def test_a_short_soak_shows_what_grew(tmp_path, monkeypatch):
    for row in soak(tmp_path, 4, 2):
        assert row["misses"] == []
        assert (row["descriptors"], row["threads"], row["files"]) == ("0", "0", "0")
    executor = "benchmarks.fault_soak.tune"

    def leaking(spec, paths, *_, **__):
        from autotune.run.loop import tune

        kept.append((paths.root / "spec.yaml").open())
        return tune(spec, paths, *_, **__)

    kept: list = []
    monkeypatch.setattr(executor, leaking)
    one, _ = soak(tmp_path / "leaking", 4, 2)
    assert one["misses"] == ["1 more descriptors"]
