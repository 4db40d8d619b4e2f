"""The faults: what ends tuners, workers and supervisors, what fills disks, and other moments."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import autotune.run.journal
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.run.events import Entry
from benchmarks.fault_case import INPUT, Case, case
from benchmarks.fault_disks import full_disks, limited, no_temporary_room, read_only_runs
from benchmarks.fault_trial import ENDED_BY, Expected, Trial
from benchmarks.fault_tuner import Hooks, Kind, finish, start, tree
from benchmarks.fault_worker import PHASES

# A tuner that a signal ends when a line was written.


def place(entry: Entry) -> tuple[str, object]:
    """Return which line of a journal this is, also when it is written again; which trial is proven, speeds decide."""
    if entry.type == "proof_started":
        return entry.type, None
    return entry.type, getattr(entry, "number", None) or getattr(entry, "candidate", None)


def at_lines(
    kind: Kind, lines: Iterable[tuple[int, Entry]], numbers: Iterable[signal.Signals]
) -> Iterator[Case]:
    """Return the cases that end a tuner after each line, once and twice in the same place."""
    for (index, entry), number, times in itertools.product(lines, numbers, (1, 2)):
        name = f"{number.name} after line {index + 1} ({entry.type}){', twice' if times == 2 else ''}"
        work = partial(_end_after, entry, index, number, times)
        yield case("lines", name, kind, work, predict=kind == "arithmetic")


def _end_after(
    entry: Entry, index: int, number: signal.Signals, times: int, trial: Trial, expected: Expected
) -> None:
    def first(_: Entry, line: int) -> None:
        if line == index:
            os.kill(os.getpid(), number)

    def again(written: Entry, line: int) -> None:
        # A line that is not repeated: nothing of it is left to do, so the tuner ends where it begins.
        if place(written) == place(entry) or (line == 0 and entry.type not in {"started", "proof_started"}):
            os.kill(os.getpid(), number)

    trial.disturbed(Hooks(after_line=first), ENDED_BY[number])
    if times == 2:
        decided = entry.type == "decided"  # then there is nothing left that could be disturbed
        trial.disturbed(Hooks(after_line=again), 0 if decided else ENDED_BY[number])
    trial.ends_as(expected)


# A worker, a supervisor or a tuner that is ended while a probe is in a phase.


def in_phases(kind: Kind, phases: dict[str, tuple[str, ...]], numbers: Iterable[int]) -> Iterator[Case]:
    """Return the cases that kill or stop the worker in each phase of each kind of request, once and twice."""
    for work, number, times in itertools.product(phases, numbers, (1, 2)):
        for phase in phases[work]:
            name = (
                f"worker of {work} {signal.Signals(number).name} in {phase}{', twice' if times == 2 else ''}"
            )
            yield case(
                "phases", name, kind, partial(_hit, work, phase, {"worker": number}, times), predict=False
            )


def supervisors(kind: Kind, works: Iterable[str]) -> Iterator[Case]:
    """Return the cases that kill the processes between tuner and worker, which has left a daemon."""
    for work, parts in itertools.product(
        works, (("supervisor",), ("keeper",), ("tuner",), ("supervisor", "tuner"), ("keeper", "tuner"))
    ):
        name = f"{' and '.join(parts)} killed in {work}"
        yield case(
            "supervisors",
            name,
            kind,
            partial(_hit, work, "build", dict.fromkeys(parts, signal.SIGKILL), 1),
            predict=False,
        )


def _hit(
    work: str, phase: str, parts: dict[str, int], times: int, trial: Trial, expected: Expected, name: str = ""
) -> None:
    """Send signals to parts of a probe's tree when its worker enters a phase; the tuner's own comes last."""

    def wanted(request: ProbeRequest, folder: Path) -> bool:
        return request.kind == work and (not name or folder.name == name)

    def hit() -> None:
        pids = tree()
        for part in sorted(parts, key=lambda part: part == "tuner"):
            os.kill(pids[part], parts[part])

    def at_phase(request: ProbeRequest, folder: Path, progress: Progress) -> None:
        if progress.phase != phase or not wanted(request, folder):
            return
        for number in range(times):
            if not (mark := trial.folder / f"hit{number}").exists():
                mark.touch()
                hit()
                return

    def waits_in(request: ProbeRequest, folder: Path) -> str | None:
        left = any(not (trial.folder / f"hit{number}").exists() for number in range(times))
        return phase if left and wanted(request, folder) else None

    hooks = Hooks(at_phase=at_phase, waits_in=waits_in, daemons=True)
    trial.disturbed(hooks, ENDED_BY[signal.Signals(parts["tuner"])] if "tuner" in parts else 0)
    if not (trial.folder / "hit0").exists():
        trial.miss("the fault did not happen")
    trial.ends_as(expected)


# Other moments, and other tuners.


def clock_set_back(kind: Kind) -> Case:
    """Return the case of a wall clock that jumps back an hour at each line, and of a tuner killed meanwhile."""

    def work(trial: Trial, expected: Expected) -> None:
        def after_line(_: Entry, line: int) -> None:
            offset[0] -= timedelta(hours=1)
            if line == len(expected.lines) // 2:
                os.kill(os.getpid(), signal.SIGKILL)

        offset = [timedelta(0)]

        class Backwards(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(tz) + offset[0]

        def setup() -> None:
            clock = time.time
            vars(autotune.run.journal)["datetime"] = Backwards
            time.time = lambda: clock() + offset[0].total_seconds()

        trial.disturbed(Hooks(after_line=after_line, setup=setup), -signal.SIGKILL)
        trial.ends_as(expected)

    return case("others", "wall clock set back at each line", kind, work, predict=kind == "arithmetic")


def two_tuners(kind: Kind) -> Case:
    """Return the case of a second tuner on a run that is under way."""

    def work(trial: Trial, expected: Expected) -> None:
        def after_line(entry: Entry, _: int) -> None:
            if entry.type == "started" and entry.number == 2:
                second = finish(*start(trial.root, kind, Hooks(), trial.mark))
                (trial.folder / "second").write_text(f"{second.code} {second.said}")

        trial.disturbed(Hooks(after_line=after_line), 0)
        second = (trial.folder / "second").read_text()
        if not second.startswith(f"{INPUT} ") or "another autotune" not in second:
            trial.miss(f"the second tuner: {second[-200:]}")
        trial.ends_as(expected)

    return case("others", "a second tuner on the same run", kind, work, predict=kind == "arithmetic")


def many_tuners(kind: Kind, count: int) -> Case:
    """Return the case of several tuners at once on one device, each with a run of its own."""

    def run(folder: Path, expected: Expected) -> list[str]:
        trials = [Trial(kind, folder / str(number), predict=False) for number in range(count)]
        started = [start(trial.root, kind, Hooks(), trial.mark) for trial in trials]
        misses = []
        for trial, (pid, read) in zip(trials, started, strict=True):
            if (ended := finish(pid, read)).code != 0:
                trial.miss(f"exit code {ended.code}: {ended.said.strip()[-200:]}")
            trial.ends_as(expected)
            misses += trial.misses
        return misses

    return Case("others", f"{count} tuners at once on one device", kind, run, predict=False)


def arithmetic_cases(foreseen: Expected) -> list[Case]:
    """Return every fault, on executors made of arithmetic."""
    kills = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return [
        *at_lines("arithmetic", enumerate(foreseen.lines), kills),
        *in_phases("processes", PHASES, (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)),
        *supervisors("processes", PHASES),
        *full_disks("processes", foreseen, (1, 4, 8, 12, 16, 24, 32, 48, 64, 80)),
        no_temporary_room("processes"),
        read_only_runs("processes"),
        clock_set_back("arithmetic"),
        two_tuners("processes"),
        many_tuners("processes", 10),
    ]


def real_cases(expected: Expected) -> list[Case]:
    """Return 15 faults with real probes."""
    places = {place(entry): (index, entry) for index, entry in enumerate(expected.lines)}
    second = places[("started", 2)]
    proof = next(
        (index, entry) for index, entry in enumerate(expected.lines) if entry.type == "proof_started"
    )
    cases = [
        *at_lines("real", [second], (signal.SIGKILL,)),
        *at_lines("real", [proof], (signal.SIGTERM,)),
        *itertools.islice(at_lines("real", [second], (signal.SIGINT,)), 1),
        *(
            case("phases", f"worker of {work} {number.name} in {phase}", "real",
                  partial(_hit, work, phase, {"worker": number}, 1), predict=False)
            for work, phase, number in (
                ("train", "forward", signal.SIGKILL), ("train", "backward", signal.SIGSTOP),
                ("prove", "save", signal.SIGKILL), ("inspect", "start", signal.SIGTERM),
            )
        ),
        *(
            case("supervisors", f"{' and '.join(parts)} killed in {work}", "real",
                  partial(_hit, work, "build", dict.fromkeys(parts, signal.SIGKILL), 1), predict=False)
            for work, parts in (
                ("train", ("supervisor",)), ("train", ("supervisor", "tuner")), ("prove", ("keeper", "tuner"))
            )
        ),
        case("disk", "no room for the second probe's verdict", "real", partial(limited, second[0] + 1),
              predict=False),
        no_temporary_room("real"),
        two_tuners("real"),
    ]  # fmt: skip
    assert len(cases) == 15, len(cases)
    return cases
