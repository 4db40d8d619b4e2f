"""A long journal is read many lines at a time: to the same record, and the same complaint about the same line."""

import pytest

from autotune.candidate import Candidate
from autotune.errors import JournalError
from autotune.run import sealed_lines
from autotune.run.events import Asked, Finished, Inspected, Opened, Started
from autotune.run.journal import parse_journal
from autotune.testing.arithmetic import Arithmetic, ok
from tests.fakes.executor import FACTS, ArithmeticExecutor


def journal(probes):
    """The lines of a run of so many probes."""
    entries = [
        Asked(spec={}, digest=""),
        Opened(version="0", site=ArithmeticExecutor(Arithmetic(budget=1000)).describe(), time="now"),
        Inspected(facts=FACTS, baseline=0, budget=1000),
    ]
    for number in range(1, probes + 1):
        entries += [
            Started(number=number, candidate=Candidate(micro_batch=number), node="grow", why="", time=""),
            Finished(number=number, outcome=ok(10), seconds=1.5),
        ]
    lines, last = [], b""
    for entry in entries:
        last = sealed_lines.sealed(entry.model_dump_json().encode(), last)
        lines.append(last)
    return lines


def read(lines, path, monkeypatch, together):
    """Return what parsing comes to: record and place, or the code and line of the complaint."""
    monkeypatch.setattr(sealed_lines, "TOGETHER", together)
    try:
        return parse_journal(b"".join(line + b"\n" for line in lines), path)
    except JournalError as error:
        return error.args


def half(line):
    return line[: len(line) // 2]


@pytest.mark.parametrize("probes", [1, 2, 5])
def test_lines_read_together_are_those_read_alone(probes, tmp_path, monkeypatch):
    lines = journal(probes)
    alone = read(lines, tmp_path / "j", monkeypatch, 1000)
    assert len(alone[0].history) == probes
    for together in (2, 3, 4):
        assert read(lines, tmp_path / "j", monkeypatch, together) == alone


@pytest.mark.parametrize(
    "damage",
    [half, lambda line: b"", lambda line: line.replace(b'"number"', b'"nunber"'), lambda line: line + b"," + line,
     lambda line: line.replace(b'"seconds":1.5', b'"seconds":2.5').replace(b'"why":""', b'"why":"no"')],
)  # fmt: skip
@pytest.mark.parametrize("place", [3, 6, 8, 12])
def test_a_damaged_line_is_found_among_those_read_together(damage, place, tmp_path, monkeypatch):
    lines = journal(5)
    lines[place] = damage(lines[place])
    alone = read(lines, tmp_path / "j", monkeypatch, 1000)
    for together in (2, 4, 5):
        assert read(lines, tmp_path / "j", monkeypatch, together) == alone


def test_lines_that_are_joined_otherwise_are_refused(tmp_path, monkeypatch):
    """Two on one line and half of one on each of two others: as many lines as entries, and none of them as written."""
    lines = journal(5)
    first, second, third, fourth = lines[4:8]
    lines[4:8] = [first + b"," + second, half(third), third[len(half(third)) :], fourth]
    for together in (2, 4, 8, 1000):
        assert isinstance(read(lines, tmp_path / "j", monkeypatch, together)[0], str)


def test_many_lines_are_read_at_a_time(tmp_path, monkeypatch):
    lines = journal(20)
    asked = []
    read_many = sealed_lines._together
    monkeypatch.setattr(
        sealed_lines, "_together", lambda *them: asked.append(len(them[0])) or read_many(*them)
    )
    read(lines, tmp_path / "j", monkeypatch, 10)
    assert asked == [10, 10, 10, 10, 3]
