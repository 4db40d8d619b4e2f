"""The file of a recorded grid: appended line by line, read back whole, refused where it is damaged."""

import pytest

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import GridEquals, GridPoint, append_line, read_grid
from autotune.errors import InputError
from autotune.racing import SpeedBound
from autotune.search.shipped import load_space
from autotune.testing.arithmetic import Arithmetic, ok
from autotune.testing.grids import CONDITIONS, NAME, arithmetic_lines, write_grid
from autotune.units import MIB

DEVICE = Arithmetic(budget=1000).in_units(MIB)


@pytest.fixture
def file(tmp_path):
    space = load_space("minimal")
    return write_grid(tmp_path / "grid.jsonl", arithmetic_lines(DEVICE, space, micro_batches=(1, 16)))


def point(round=1, micro_batch=1, seconds=2.0):
    return GridPoint(
        candidate=Candidate(micro_batch=micro_batch), accumulation_steps=16, round=round, outcome=ok(5),
        seconds=seconds, conditions=CONDITIONS,
    )  # fmt: skip


def test_what_is_appended_is_read_back(file):
    grid = read_grid(file)
    assert (grid.header.name, grid.header.site.device.name) == (NAME, NAME)
    assert grid.points[Candidate(micro_batch=1)].outcome.kind == "ok"
    assert grid.points[Candidate(micro_batch=16)].outcome.kind == "oom"
    assert set(grid.traces) == {one.rung() for one in grid.points}
    assert grid.repeats == {}
    assert grid.equals is None
    append_line(file, point(1))
    append_line(file, point(2, seconds=3.0))
    append_line(
        file, GridEquals(rounds=2, fastest=Candidate(), equals=(Candidate(),), compared=(Candidate(),))
    )
    grid = read_grid(file)
    assert [line.seconds for line in grid.repeats[Candidate()]] == [2.0, 3.0]
    assert len(grid.samples(Candidate())) == 3
    assert grid.equals.fastest == Candidate()


def test_a_torn_last_line_is_dropped_and_written_over(file):
    points = read_grid(file).points
    with file.open("ab") as handle:
        handle.write(b'{"type":"point","cand')
    assert read_grid(file).points == points
    append_line(file, point())
    grid = read_grid(file)
    assert (grid.points, len(grid.repeats)) == (points, 1)


def test_damage_is_told_with_its_line(file):
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:2], "{}\n", *lines[2:]]))
    with pytest.raises(InputError, match=":3: "):
        read_grid(file)
    file.write_text("".join(lines[1:]))
    with pytest.raises(InputError, match=r":1: a recorded"):
        read_grid(file)
    file.write_text("".join([*lines, lines[-1]]))
    with pytest.raises(InputError, match="recorded before"):
        read_grid(file)
    file.write_text("")
    with pytest.raises(InputError, match="empty"):
        read_grid(file)


def test_a_trial_that_ended_before_its_speed_was_known_is_no_point():
    slow = SpeedBound(seconds=9.0, fastest=9.5, share=0.05, beaten_by=5.0, steps=1)
    with pytest.raises(ValueError, match="it can answer for no probe"):
        GridPoint(
            candidate=Candidate(), accumulation_steps=16, seconds=1.0, conditions=CONDITIONS,
            outcome=ok(5).model_copy(update={"timing": None, "bound": slow}),
        )  # fmt: skip
