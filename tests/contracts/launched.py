"""Probes whose worker misbehaves, and the processes that are theirs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from autotune.candidate import Candidate
from autotune.probe.classify import classify
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import MARK, launch
from autotune.probe.protocol import ProbeRequest
from autotune.probe.warm import WarmLauncher
from autotune.specs import ModelSpec

MISBEHAVE = Path(__file__).parents[1] / "data" / "misbehave.py"
REQUEST = ProbeRequest(
    kind="train", model=ModelSpec(name="tiny", source="preset"), candidate=Candidate(), seq_len=8,
    accumulation_steps=1, device="cpu", budget=0, seed=0, sample_seconds=1, sample_steps=1, folder="",
)  # fmt: skip

COLD = (sys.executable, "-I", "-S", str(MISBEHAVE))
SERVER = (sys.executable, "-I", "-S", str(MISBEHAVE.with_name("serve.py")), str(MISBEHAVE))

Run = Callable[..., Report]


def marked() -> list[int]:
    """Return the processes of any probe that this test launched."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.environ["TESTED"] == process.environ().get("TESTED") and MARK in process.environ():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@contextmanager
def launching_misbehaviour(launcher: str) -> Iterator[Callable[..., Report]]:
    """Give what launches workers with a behaviour, cold or forked from a server of it."""
    with ExitStack() as stack:

        def launch_one(behaviour: str, folder: ProbeFolder, **options: Any) -> Report:
            worker = options.pop("worker", (*COLD, behaviour))
            if launcher == "cold":
                return launch(REQUEST, folder, worker=worker, **options)
            warm = (
                stack.enter_context(WarmLauncher(SERVER, worker))
                if behaviour not in made
                else made[behaviour]
            )
            made[behaviour] = warm
            report = warm(REQUEST, folder, **options)
            assert report.launcher == "warm", report.cold_because
            return report

        made: dict[str, WarmLauncher] = {}
        yield launch_one


def verdict(report: Report, data_limit: int | None = None) -> object:
    return classify(REQUEST, report, kind="cpu", data_limit=data_limit)


def keeper_and_supervisor(launcher: str, tuner: int | None = None) -> tuple[psutil.Process, psutil.Process]:
    """Return the two processes between a tuner (this one), or its server, and the worker of its newest probe.

    Tests before may have left this process children: what multiprocessing starts (its fork server, its tracker of
    resources) stays until the process ends.
    """
    children = psutil.Process(tuner).children()
    if launcher == "warm":
        servers = [child for child in children if set(SERVER) <= set(child.cmdline())]
        children = max(servers, key=psutil.Process.create_time).children()
    keeper = max(children, key=lambda child: (child.create_time(), child.pid))
    return keeper, keeper.children()[0]
