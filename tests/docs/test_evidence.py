"""Evidence is gathered in as many calls as it takes: killed at any moment and started again, nothing is repeated."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import TRIES, Attachments, Case, State, TimeIsUp, WrongState, gather

ROOT = Path(__file__).parents[2]
LARGEST = 1 << 20
KILLS = 20
CALL = """
import sys, time
from pathlib import Path
from benchmarks.evidence import Case, State, gather
folder = Path(sys.argv[1])
def case(number):
    def run(left):
        time.sleep(0.005)
        return {"number": number}
    return Case(f"case {number}", 0.0, run)
cases = [case(number) for number in range(12)]
print("begun", flush=True)
state = State(folder / "state.jsonl", "a test", 1 << 20)
for ended, found in gather(cases, state, time.monotonic() + 60):
    pass
print("whole")
"""


def found(**facts: Any) -> Any:
    return lambda left: facts


def names(cases: list[Case], state: State, seconds: float = 60.0) -> list[str]:
    return [case.name for case, _ in gather(cases, state, time.monotonic() + seconds)]


def test_killed_at_random_and_started_again_it_repeats_nothing(tmp_path: Path) -> None:
    drawn, killed = random.Random(0), 0
    for _ in range(60):
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})" + CALL, str(tmp_path)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", "what is killed is the work, however slow the machine"
        try:
            said, _ = process.communicate(timeout=drawn.uniform(0.0, 0.06) if killed < KILLS else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            continue
        if "whole" in said:
            break
    state = State(tmp_path / "state.jsonl", "a test", LARGEST)
    assert killed
    lines = [json.loads(line) for line in state.path.read_text().splitlines()]
    ended = [line["case"] for line in lines if "result" in line]
    assert len(ended) == len(set(ended)), "no case ended twice"
    assert all(sum(line.get("case") == name and "began" in line for line in lines) <= TRIES for name in ended)
    assert len(state.results) + len(state.given_up([Case(f"case {n}", 0, found()) for n in range(12)])) == 12


def test_what_has_no_time_left_is_passed_over_for_what_has(tmp_path: Path) -> None:
    state = State(tmp_path / "s", "a test", LARGEST)
    cases = [Case("long", 100.0, found()), Case("short", 1.0, found())]
    assert names(cases, state, seconds=50.0) == ["short"]
    assert names(cases, State(tmp_path / "s", "a test", LARGEST), seconds=500.0) == ["long"]


def test_a_failure_is_a_result_and_a_case_that_ends_its_calls_is_given_up(tmp_path: Path) -> None:
    state = State(tmp_path / "s", "a test", LARGEST)

    def fail(left: float) -> dict[str, Any]:
        raise ValueError("no such kernel")

    assert names([Case("failing", 0.0, fail), Case("next", 0.0, found())], state) == ["failing", "next"]
    assert state.results["failing"]["result"]["failed"] == "ValueError: no such kernel"
    deadly = Case("deadly", 0.0, found())
    for _ in range(TRIES):
        assert state.left([deadly]) == [deadly]
        state.begin(deadly)
        state = State(tmp_path / "s", "a test", LARGEST)
    assert (state.left([deadly]), state.given_up([deadly])) == ([], ["deadly"])


def test_a_case_whose_time_is_up_goes_on_in_any_number_of_calls(tmp_path: Path) -> None:
    parts: list[int] = []

    def slow(left: float) -> dict[str, Any]:
        parts.append(len(parts))
        if len(parts) <= TRIES + 1:
            raise TimeIsUp
        return {"parts": len(parts)}

    cases = [Case("slow", 0.0, slow), Case("next", 0.0, found())]
    assert names(cases, State(tmp_path / "s", "a test", LARGEST)) == ["next"]
    for _ in range(TRIES):
        assert names(cases, State(tmp_path / "s", "a test", LARGEST)) == []
    assert names(cases, State(tmp_path / "s", "a test", LARGEST)) == ["slow"]
    assert State(tmp_path / "s", "a test", LARGEST).results["slow"]["result"] == {"parts": TRIES + 2}


def test_a_torn_line_is_cut_off_and_another_subject_refused(tmp_path: Path) -> None:
    state = State(tmp_path / "s", "a test", LARGEST)
    names([Case("one", 0.0, found(value=1))], state)
    with state.path.open("ab") as file:
        file.write(b'{"case": "two", "resu')
    again = State(tmp_path / "s", "a test", LARGEST)
    assert names([Case("one", 0.0, found()), Case("two", 0.0, found())], again) == ["two"]
    assert list(State(tmp_path / "s", "a test", LARGEST).results) == ["one", "two"]
    with pytest.raises(WrongState):
        State(tmp_path / "s", "another", LARGEST)


def test_a_case_runs_once_more_where_that_is_asked_for(tmp_path: Path) -> None:
    case, state = Case("one", 0.0, found(value=1)), State(tmp_path / "s", "a test", LARGEST)
    names([case], state)
    state.reopen("one")
    state = State(tmp_path / "s", "a test", LARGEST)
    assert names([case], state) == ["one"]
    assert not names([case], state)


def test_files_stay_within_their_limits(tmp_path: Path) -> None:
    state = State(tmp_path / "s", "a test", 500)
    names([Case("large", 0.0, found(text="x" * 600)), Case("small", 0.0, found(value=1))], state)
    assert "left_out" in state.results["large"]["result"]
    assert state.results["small"]["result"] == {"value": 1}
    source = tmp_path.parent / "journal"
    source.write_text("0123456789")
    kept = Attachments(tmp_path, most=2, largest=10)
    assert kept.keep(source, "one") == "one"
    assert "left out" in kept.keep(source, "two")
    assert kept.keep(source, "one") == "one"
    assert "left out" in Attachments(tmp_path, most=9, largest=9).keep(source, "three")
