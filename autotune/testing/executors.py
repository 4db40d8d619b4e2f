"""What every executor must keep, as tests: subclass `ExecutorContract`, or `ProcessContract` if it launches processes.

    class TestMine(ProcessContract):
        def make_executor(self, behaviour: Behaviour) -> Executor:
            return Mine(...)

        def make_request(self, kind: ProbeKind, behaviour: Behaviour) -> ProbeRequest:
            return ProbeRequest(kind=kind, model=..., ...)

What a probe is to do is a `Behaviour`. An executor that runs the real worker brings it about by the request, whose
model can be a function of one's own that sleeps or forks; others are made with a worker that does as it is told.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from signal import SIGINT
from typing import Literal, NoReturn

import psutil
import pytest

from autotune.executors.executor import Executor, ProbeResult
from autotune.interruption import Interruption
from autotune.outcome import OUTCOMES, Ok, Timeout, Unsupported
from autotune.probe.folder import ProbeFolder
from autotune.probe.protocol import Inspection, ProbeKind, ProbeRequest, Progress
from autotune.site import Site
from autotune.variables import VARIABLES

Behaviour = Literal["trains", "hangs", "leaves a process"]
"""What the worker of a probe does: its work; nothing more, from forward on; its work, beside a process that goes on."""

PATIENCE = 120.0
"""Seconds that a probe which ends by itself gets: never spent, however slow the machine."""
SOON = 2.0
"""Seconds that a probe gets which does not."""


class ExecutorContract:
    """The tests of any executor. Subclass it under a name that pytest collects (`Test...`)."""

    def make_executor(self, behaviour: Behaviour) -> Executor:
        """Return the executor under test, for probes that behave so."""
        raise NotImplementedError

    def make_request(self, kind: ProbeKind, behaviour: Behaviour) -> ProbeRequest:
        """Return a request that the executor can run, and that behaves so; its folder is empty text."""
        raise NotImplementedError

    def test_it_describes_where_its_probes_run_as_plain_data(self) -> None:
        executor = self.make_executor("trains")
        site = executor.describe()
        assert Site.model_validate_json(site.model_dump_json()) == site
        assert executor.describe() == site
        assert 0 < site.device.budget <= site.device.total

    def test_it_tells_what_room_there_is(self, tmp_path: Path) -> None:
        executor = self.make_executor("trains")
        assert executor.offload_room(tmp_path / "not" / "made" / "yet", "disk") >= 0
        assert executor.offload_room(tmp_path, "host") >= 0

    def test_an_inspection_says_what_the_model_is(self, tmp_path: Path) -> None:
        result = self.run("inspect", tmp_path / "inspection")
        assert isinstance(result.answer, Inspection), result.answer
        assert result.answer.facts.tokens_per_sample > 0

    @pytest.mark.parametrize("kind", ["train", "prove"])
    def test_a_probe_ends_in_a_typed_outcome(self, kind: ProbeKind, tmp_path: Path) -> None:
        result = self.run(kind, tmp_path / "probe")
        assert type(result.answer) in OUTCOMES.values()
        if isinstance(result.answer, Ok):
            assert result.answer.memory.peak() > 0
            assert result.answer.timing is not None, "nobody said what was to be beaten"
            assert result.answer.timing.last_micro_step.mean > 0
        else:  # nothing refuses or ends a probe that behaves, but who cannot prove may say so
            assert isinstance(result.answer, Unsupported), result.answer
            assert kind == "prove"
        assert result.seconds >= 0
        assert result.leftovers == 0

    @pytest.mark.parametrize("kind", ["inspect", "train", "prove"])
    def test_a_result_survives_json(self, kind: ProbeKind, tmp_path: Path) -> None:
        result = self.run(kind, tmp_path / "probe")
        assert ProbeResult.model_validate_json(result.model_dump_json()) == result

    def test_the_variables_that_it_sets_are_those_that_a_file_may_hold(self, tmp_path: Path) -> None:
        assert set(self.run("train", tmp_path / "probe").variables) <= VARIABLES

    def test_a_folder_is_left_without_scratch_and_can_be_used_again(self, tmp_path: Path) -> None:
        folder = tmp_path / "probe"
        first, again = self.run("train", folder), self.run("train", folder)
        assert type(first.answer) is type(again.answer)
        self.assert_no_scratch(folder)
        assert {path.name for path in tmp_path.iterdir()} <= {folder.name}, "a probe writes to its own folder"

    def test_progress_is_told_as_it_happens(self, tmp_path: Path) -> None:
        heard: list[Progress] = []
        self.make_executor("trains").run(
            self.make_request("train", "trains"),
            tmp_path / "probe",
            timeout=PATIENCE,
            on_progress=heard.append,
        )
        assert all(isinstance(progress, Progress) for progress in heard)

    def run(
        self, kind: ProbeKind, folder: Path, behaviour: Behaviour = "trains", timeout: float = PATIENCE
    ) -> ProbeResult:
        """Run one request and return its result."""
        executor = self.make_executor(behaviour)
        return executor.run(self.make_request(kind, behaviour), folder, timeout=timeout)

    def assert_no_scratch(self, folder: Path) -> None:
        """Fail where a probe, or a rank of it, left its scratch folder."""
        places = (folder, *(path for path in folder.glob("rank*") if path.is_dir()))
        assert [place for place in places if ProbeFolder(place).scratch.exists()] == []


class ProcessContract(ExecutorContract):
    """The tests of an executor that launches processes on this machine: whatever happens they end, and none is left."""

    @pytest.fixture(autouse=True)
    def _nothing_left(self, monkeypatch: pytest.MonkeyPatch) -> object:
        """Mark all that a test launches by a variable that processes inherit, and look for it afterwards."""
        mark = uuid.uuid4().hex
        monkeypatch.setenv("AUTOTUNE_CONTRACT", mark)
        yield
        left = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("AUTOTUNE_CONTRACT") == mark:
                    left.append(f"{process.pid}: {' '.join(process.cmdline())}")
            except psutil.Error:  # gone by now, or another user's
                continue
        assert left == []

    def test_the_deadline_ends_a_probe_that_hangs(self, tmp_path: Path) -> None:
        result = self.run("train", tmp_path / "probe", "hangs", timeout=SOON)
        assert isinstance(result.answer, Timeout), result.answer
        self.assert_no_scratch(tmp_path / "probe")

    def test_an_interruption_ends_the_probe_and_is_passed_on(self, tmp_path: Path) -> None:
        def interrupt(_: Progress) -> NoReturn:
            raise Interruption(SIGINT)

        executor = self.make_executor("hangs")
        with pytest.raises(Interruption):
            executor.run(
                self.make_request("train", "hangs"),
                tmp_path / "probe",
                timeout=PATIENCE,
                on_progress=interrupt,
            )
        self.assert_no_scratch(tmp_path / "probe")

    def test_what_a_worker_leaves_running_is_ended_and_counted(self, tmp_path: Path) -> None:
        result = self.run("train", tmp_path / "probe", "leaves a process")
        assert isinstance(result.answer, Ok), result.answer
        assert result.leftovers >= 1
