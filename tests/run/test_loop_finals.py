"""Whole runs whose probes do not tell the two fastest apart, on the device made of arithmetic."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
from rich.console import Console

from autotune.interruption import Interruption
from autotune.outcome import Ok, Oom
from autotune.racing import SpeedBound
from autotune.reporting.document import document, print_report
from autotune.reporting.live import Terminal
from autotune.run.best import Best
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.order import JournalOrder
from autotune.testing.arithmetic import ok
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, make_spec
from tests.fakes.stopping import Killed, at, ending

SPEC = make_spec(max_probes=16).model_copy(update={"strategy": "grid"})


class Near(ArithmeticExecutor):
    """Measures the first two that fit as equally fast, and all others as slow; again, the first as slower."""

    def __init__(self, again=10.5) -> None:
        super().__init__(BIG)
        self.near = []
        self.again = again
        """What a global step of the first takes when it is measured again; or what that comes to."""
        self.folders = []

    def run(self, request, folder, **rest):
        result = super().run(request, folder, **rest)
        if not isinstance(result.answer, Ok) or request.kind == "inspect":
            return result
        self.folders.append(folder.name)
        if len(self.near) < 2 and request.candidate not in self.near:
            self.near.append(request.candidate)
        seconds = 10.0 if request.candidate in self.near else 20.0
        if request.candidate == self.near[0] and "final" in folder.name:
            seconds = self.again
        if not isinstance(seconds, float):
            return result.model_copy(update={"answer": seconds})
        answer = ok(
            result.answer.memory.peak(),
            seconds / request.accumulation_steps,
            0.0,
            result.answer.memory.budget,
        )
        return result.model_copy(update={"answer": answer})


def finals(executor):
    return [name for name in executor.folders if "final" in name]


def played(folder, executor, callbacks=None):
    paths = create_run(SPEC, folder)
    return tune(SPEC, paths, executor, callbacks), paths


def test_what_probes_do_not_tell_apart_is_measured_again_in_alternation_before_the_proof(tmp_path):
    executor = Near()
    best, paths = played(tmp_path, executor)
    assert executor.folders[-5:] == ["0001-final1", "0002-final1", "0002-final2", "0001-final2", "0002-proof"]
    assert all(request.to_beat is None for request in executor.requests[-5:])
    assert best.candidate == executor.near[1]
    assert (best.chosen_by, best.alternatives) == ("speed", ())
    (other,) = best.finals
    assert (other.candidate, other.rounds) == (executor.near[0], 2)
    assert 0.03 < other.slower < 0.07
    assert Best.read(paths.best) == best
    kinds = [entry.type for entry in read_record(paths.journal).entries]
    assert kinds.index("searched") < kinds.index("rematch_started") < kinds.index("proof_started")
    assert kinds.count("rematch_started") == kinds.count("rematch_finished") == 4


def test_screen_and_report_say_what_the_finals_showed(tmp_path):
    console = Console(width=250, file=io.StringIO())
    _, paths = played(tmp_path, Near(), Terminal(console, SPEC))
    shown = console.file.getvalue()
    assert "finals, round 2: probe 2 again" in shown
    results = re.findall(r"^round (\d), probe (\d) again: ([\d,.]+) tokens/s$", shown, re.MULTILINE)
    assert [(round_, probe) for round_, probe, _ in results] == [
        ("1", "1"),
        ("1", "2"),
        ("2", "2"),
        ("2", "1"),
    ]
    speeds = {probe: float(speed.replace(",", "")) for _, probe, speed in results}
    assert speeds["2"] / speeds["1"] == pytest.approx(1.05, abs=0.01), "as it was measured again, not before"
    assert "finals over: probe 2 (" in shown
    assert "in 2 rounds" in shown
    report = Console(width=250, file=io.StringIO())
    print_report(paths, report)
    text = " ".join(report.file.getvalue().split())
    assert "measured again in alternation: " in text
    assert " slower in 2 rounds" in text
    assert "not distinguishable" not in text
    assert [entry["number"] for entry in document(paths)["rematches"]] == [1, 2, 2, 1]


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM"])
def test_finals_go_on_where_they_were_and_repeat_nothing(tmp_path, signal):
    whole, reference = played(tmp_path / "whole", Near())
    lines = len(reference.journal.read_text().splitlines())
    begun = next(
        number
        for number, entry in enumerate(read_record(reference.journal).entries, start=1)
        if entry.type == "rematch_started"
    )
    for stop in range(begun, lines):
        paths = create_run(SPEC, tmp_path / str(stop))
        executor = Near()
        with ending(at(stop), signal), contextlib.suppress(Killed, Interruption):
            tune(SPEC, paths, executor)
        best = tune(SPEC, paths, executor)
        record = read_record(paths.journal)
        assert [rematch.number for rematch in record.rematches] == [1, 2, 2, 1]
        assert (best.candidate, best.finals) == (whole.candidate, whole.finals)
        assert len(finals(executor)) <= 5


def test_a_finalist_that_runs_out_of_memory_again_is_no_winner(tmp_path):
    console = Console(width=250, file=io.StringIO())
    executor = Near(again=Oom(phase="backward"))
    best, _ = played(tmp_path, executor, Terminal(console, SPEC))
    assert best.candidate == executor.near[1]
    assert finals(executor) == ["0001-final1", "0002-final1"]
    assert "probe 1 again: OOM in backward" in console.file.getvalue()


def test_lines_of_finals_that_no_tuner_writes_are_refused(tmp_path):
    _, paths = played(tmp_path, Near())
    entries = read_record(paths.journal).entries

    def refused(lines):
        order = JournalOrder()
        return next((reason for entry in lines if (reason := order.refusal(entry))), None)

    places = [index for index, entry in enumerate(entries) if entry.type.startswith("rematch_")]
    assert len(places) == 8
    assert refused(entries) is None
    for index in places:
        assert refused([*entries[:index], *entries[index + 1 :]]), "a line is missing"
    for index in places[:-2:2]:
        assert refused([*entries[:index], *entries[index + 2 :]]), "a whole rematch is missing"
    assert refused([*entries[: places[0]], *entries[places[2] : places[3] + 1]]), "the second came first"
    assert refused([entry for entry in entries if entry.type != "searched"])


class Falling(Near):
    """Ends every probe early but the first one's, which does not hold when relaunched."""

    def run(self, request, folder, **rest):
        result = super().run(request, folder, **rest)
        if request.kind == "prove" and request.candidate == self.near[0]:
            return result.model_copy(update={"answer": Oom(phase="evaluation")})
        if request.to_beat is not None and isinstance(result.answer, Ok):
            slow = SpeedBound(seconds=15.0, fastest=16.0, share=0.05, beaten_by=10.3, steps=1)
            answer = result.answer.model_copy(update={"timing": None, "bound": slow})
            return result.model_copy(update={"answer": answer})
        return result


def test_where_the_best_does_not_hold_one_that_ended_early_is_measured_and_proven(tmp_path):
    executor = Falling()
    best, _ = played(tmp_path, executor)
    assert best.proof.passed
    assert best.candidate != executor.near[0]
    assert len(finals(executor)) == 1
    assert executor.folders[-2:] == [finals(executor)[0], finals(executor)[0].replace("final1", "proof")]
