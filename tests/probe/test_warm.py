"""Which probes are forked and which start cold, what a server that is gone costs, and that none outlives its tuner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import end_all, launch
from autotune.probe.protocol import ProbeRequest, Result
from autotune.probe.warm import KEPT, LEAST, WarmLauncher, launcher_by_name, unserved
from autotune.probe.warm_server import ServerLost, WarmServer
from autotune.specs import ModelSpec
from autotune.units import GIB, MIB

DATA = Path(__file__).parents[1] / "data"
PYTHON = (sys.executable, "-I", "-S")
WORKER = (*PYTHON, str(DATA / "misbehave.py"), "describe")
SERVER = (*PYTHON, str(DATA / "serve.py"), WORKER[3])


def request(kind: str = "train", model: str = "tiny", **candidate: Any) -> ProbeRequest:
    spec = ModelSpec(name=model, source="preset", config={"model_type": model})
    return ProbeRequest.model_validate({
        "kind": kind, "model": spec, "candidate": Candidate(**candidate), "seq_len": 8,
        "accumulation_steps": 1, "device": "cpu", "budget": 0, "seed": 0, "sample_seconds": 1, "sample_steps": 1,
        "folder": "",
    })  # fmt: skip


class Launches:
    """Launches warm, and counts the servers that were started."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.words = words
        self.warm = WarmLauncher((*SERVER, *words), WORKER)

    def __call__(self, asked: ProbeRequest | None = None, **options: Any) -> Report:
        given = {"environment": {}, "data_limit": None, "timeout": 60.0, **options}
        report = self.warm(asked or request(), ProbeFolder(self.folder / "probe"), **given)
        assert isinstance(report.answer, Result), report
        return report

    def servers(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process().children():
            with suppress(psutil.Error):  # it is just ending
                if SERVER[3] in child.cmdline():
                    found.append(child)
        return found


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    made = Launches(tmp_path)
    with made.warm:
        yield made
    assert made.servers() == []


def test_what_a_fork_cannot_serve_is_named() -> None:
    assert unserved(request()) is None
    assert unserved(request("inspect")) is None
    for kind in (
        "train",
        "trace",
    ):  # the compiler starts its threads and processes at its first use, in the fork
        assert unserved(request(kind, compile="regional")) is None
    for cold in (
        request("prove"), request(sharding="zero3", engine="deepspeed"),
        request("trace").model_copy(update={"also": (Candidate(sharding="zero3", engine="deepspeed"),)}),
        request(attention="flash_attention_2"),
    ):  # fmt: skip
        assert unserved(cold)
    assert unserved(request("trace", attention="flash_attention_2")) is None  # its stand-ins answer instead


def test_the_launcher_is_chosen_by_name() -> None:
    with launcher_by_name("cold") as cold, launcher_by_name("warm") as warm:
        assert cold is launch
        assert isinstance(warm, WarmLauncher)


def test_probes_of_one_environment_share_a_server(launches: Launches) -> None:
    ranks = [launches(environment={"RANK": str(rank), "TOLD": "yes"}) for rank in range(2)]
    assert [report.launcher for report in ranks] == ["warm", "warm"]
    assert len(launches.servers()) == 1
    launches(environment={"MALLOC_ARENA_MAX": "7", "TOLD": "yes"})
    assert len(launches.servers()) == 2


def test_ranks_on_several_gpus_share_a_server_that_sees_none(launches: Launches) -> None:
    for gpu in ("GPU-1", "GPU-2"):
        launches(environment={"CUDA_VISIBLE_DEVICES": gpu})
    (server,) = launches.servers()
    assert server.environ()["CUDA_VISIBLE_DEVICES"] == ""


def test_servers_at_work_are_not_ended_for_one_more(launches: Launches) -> None:
    for number in range(KEPT):
        launches(environment={"NUMBER": str(number)})
    for server in launches.warm._servers.values():
        server.launches += 1
    there = launches.servers()
    report = launches(environment={"NUMBER": "one more"})
    assert report.launcher == "cold"
    assert "at work" in report.cold_because
    assert launches.servers() == there


def test_models_of_one_kind_share_a_server_and_traces_take_what_is_there(launches: Launches) -> None:
    launches(request("inspect", "gpt2"), environment={"MALLOC_TOP_PAD_": "0"})
    launches(request("train", "gpt2", micro_batch=4), environment={"MALLOC_TOP_PAD_": "0"})
    launches(request("trace", "gpt2", sharding="fsdp2"))
    assert len(launches.servers()) == 1
    launches(request("trace", "llama"))
    assert len(launches.servers()) == 2


def test_a_server_too_many_ends_the_one_longest_unused(launches: Launches) -> None:
    launches(environment={"NUMBER": "0"})
    (first,) = launches.servers()
    for number in range(1, KEPT + 1):
        launches(environment={"NUMBER": str(number)})
    assert len(launches.servers()) == KEPT
    assert first not in launches.servers()


def test_a_budget_that_libraries_nearly_fill_starts_cold(tmp_path: Path) -> None:
    launches = Launches(tmp_path, f"data={GIB}")
    with launches.warm:
        cold = launches(data_limit=GIB + LEAST - MIB)
        assert cold.launcher == "cold"
        assert "1.06 GiB" in cold.cold_because
        assert launches(data_limit=GIB + LEAST).launcher == "warm"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_killed_is_replaced(launches: Launches, number: signal.Signals) -> None:
    launches()
    (server,) = launches.servers()
    server.send_signal(number)
    psutil.wait_procs([server])
    assert launches().launcher == "warm"
    assert server not in launches.servers()


def test_a_server_that_stands_still_is_replaced(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    launches()
    (server,) = launches.servers()
    server.suspend()
    monkeypatch.setattr("autotune.probe.warm_server.FORK_PATIENCE", 3.0)
    assert launches().launcher in {"warm", "cold"}
    assert server not in launches.servers()


@pytest.mark.parametrize(("word", "why"), [("die", "last words"), ("refuse", "for a test")])
def test_where_no_server_comes_probes_start_cold_and_it_is_not_tried_again(
    tmp_path: Path, word: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, started = Launches(tmp_path, word), []
    monkeypatch.setattr(
        "autotune.probe.warm.WarmServer", lambda *options: started.append(1) or WarmServer(*options)
    )
    with launches.warm:
        for _ in range(2):
            report = launches()
            assert report.launcher == "cold"
            assert why in report.cold_because
    assert started == [1]


def test_what_waits_for_a_server_ends_with_all(tmp_path: Path) -> None:
    launches, reports = Launches(tmp_path, "hang"), []
    with launches.warm:
        waiting = threading.Thread(target=lambda: reports.append(launches()))
        waiting.start()
        while not launches.servers():
            waiting.join(0.01)
        while launches.servers():
            end_all()
            waiting.join(0.01)
        waiting.join()
    assert reports[0].launcher == "cold"


def test_what_waits_hears_the_last_words_of_a_server_that_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    server, heard = WarmServer((*SERVER, "hang", "{}"), dict(os.environ), "MARK"), []
    said = server._says

    class ReadLate:
        """Its last words, which are read when whoever ends the server has had time to close them."""

        def __getattr__(self, name: str) -> Any:
            return getattr(said, name)

        def seek(self, *where: int) -> int:
            threading.Event().wait(0.2)
            return said.seek(*where)

    monkeypatch.setattr(server, "_says", ReadLate())

    def wait() -> None:
        try:
            server.ready(60)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
            heard.append(error)

    waiting = threading.Thread(target=wait)
    waiter = psutil.Process()
    waiting.start()
    while not any(SERVER[3] in child.cmdline() for child in waiter.children()):
        waiting.join(0.01)
    server.end()
    waiting.join()
    assert [type(error) for error in heard] == [ServerLost]


def test_a_probe_under_way_outlives_its_server(tmp_path: Path) -> None:
    worker = (*WORKER[:4], "flood")
    with WarmLauncher(SERVER, worker) as warm:

        def kill_servers(*_: object) -> None:
            for child in psutil.Process().children():
                if SERVER[3] in child.cmdline():
                    child.kill()

        timer = threading.Thread(target=_when_forked, args=(kill_servers,))
        timer.start()
        report = warm(
            request(), ProbeFolder(tmp_path / "probe"), environment={}, data_limit=None, timeout=120.0
        )
        timer.join()
    assert report.launcher == "warm"
    assert isinstance(report.answer, Result)
    assert report.ending is not None
    assert report.ending.exit_code == 0


def _when_forked(do: Any) -> None:
    """Call `do` once a server of this process has forked a worker."""
    pause = threading.Event()
    while True:
        for child in psutil.Process().children():
            if len(child.children(recursive=True)) >= 3:
                do()
                return
        pause.wait(0.01)


def test_a_server_dies_with_a_tuner_that_is_killed_even_where_it_stands_still() -> None:
    program = (
        "import os, sys, time\n"
        "from autotune.probe.warm_server import ServerLost, WarmServer\n"
        f"server = WarmServer({(*SERVER, '{}')!r}, dict(os.environ), 'MARK')\n"
        "print(server.ready(60)['pid'], flush=True)\n"
        "time.sleep(600)\n"
    )
    tuner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with tuner:
        assert tuner.stdout is not None
        server = psutil.Process(int(tuner.stdout.readline()))
        server.suspend()
        os.kill(tuner.pid, signal.SIGKILL)
    psutil.wait_procs([server], timeout=30)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
