"""An interruption never changes the winner: the loop on an executor made of arithmetic, ended at any line."""

from __future__ import annotations

import contextlib
import signal

import pytest

from autotune.candidate import Candidate
from autotune.errors import NothingTrained, ProbeError
from autotune.executors.executor import ProbeResult
from autotune.interruption import Interruption
from autotune.outcome import Lost
from autotune.run.best import Best
from autotune.run.events import Interrupted, ProofStarted, Started
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.paths import RunPaths
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor, crash
from tests.fakes.runs import make_spec
from tests.fakes.stopping import Killed, Place, at, ending, like

SPEC = make_spec()


def executor() -> ArithmeticExecutor:
    return ArithmeticExecutor(Arithmetic(budget=1000))


def stop(paths: RunPaths, place: Place, signal: str) -> bool:
    """Run the tuner until it is ended at a place; tell whether it came there."""
    with ending(place, signal), contextlib.suppress(Killed):
        try:
            tune(SPEC, paths, executor())
        except Interruption:
            return True
        return False
    return True


def finish(paths: RunPaths, **options) -> tuple[Best, list[tuple[str, Candidate]]]:
    """Run the tuner to its end; return what it emitted, and what it launched."""
    made = executor()
    return tune(SPEC, paths, made, **options), made.launched


def told(best: Best) -> dict:
    """Return what a best.yaml says, but for its run and date."""
    return best.model_dump(exclude={"run", "created"})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> RunPaths:
    paths = create_run(SPEC, tmp_path_factory.mktemp("undisturbed"))
    finish(paths)
    return paths


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_tuner_ended_after_any_line_comes_to_the_same_winner(undisturbed, tmp_path, signal, times):
    expected = Best.read(undisturbed.best)
    whole = read_record(undisturbed.journal)
    probes = len(whole.history)
    for number, line in enumerate(whole.entries[:-1], start=1):
        paths = create_run(SPEC, tmp_path / str(number))
        assert stop(paths, at(number), signal)
        if times == 2:  # the same place, where the run comes by again, else the next line
            stop(paths, like(line) if isinstance(line, Started | ProofStarted) else at(2), signal)
        done = {trial.number for trial in read_record(paths.journal).history}
        best, launched = finish(paths)
        assert told(best) == told(expected)
        assert told(Best.read(paths.best)) == told(expected)
        assert [kind for kind, _ in launched].count("train") == probes - len(done)
        record = read_record(paths.journal)
        assert record.unknown == ()
        assert [trial.candidate for trial in record.history] == [trial.candidate for trial in whole.history]


def test_what_the_tuner_sees_is_journaled_and_never_counts(tmp_path, undisturbed):
    paths = create_run(SPEC, tmp_path)
    fifth = next(
        e for e in read_record(undisturbed.journal).entries if isinstance(e, Started) and e.number == 5
    )
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGINT"):
        assert stop(paths, like(fifth), name)
    record = read_record(paths.journal)
    seen = [entry for entry in record.entries if isinstance(entry, Interrupted)]
    assert [(entry.work, entry.number) for entry in seen] == [("probe", 5)] * 4
    assert [entry.why for entry in seen] == ["SIGINT", "SIGTERM", "SIGHUP", "SIGINT"]
    assert record.tries("probe", 5) == 0
    assert told(finish(paths)[0]) == told(Best.read(undisturbed.best))


@pytest.mark.parametrize("work", ["inspection", "probe", "proof"])
def test_an_interruption_of_each_kind_of_work_is_journaled(tmp_path, undisturbed, work):
    class Interrupting(ArithmeticExecutor):
        def run(self, request, folder, **rest):
            if request.kind == {"inspection": "inspect", "probe": "train", "proof": "prove"}[work]:
                raise Interruption(signal.SIGTERM)
            return super().run(request, folder, **rest)

    paths = create_run(SPEC, tmp_path)
    with pytest.raises(Interruption):
        tune(SPEC, paths, Interrupting(Arithmetic(budget=1000)))
    last = read_record(paths.journal).entries[-1]
    assert isinstance(last, Interrupted)
    assert (last.work, last.why) == (work, "SIGTERM")
    assert told(finish(paths)[0]) == told(Best.read(undisturbed.best))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device"), "disk full"),
        (
            ProbeError("the probe's supervisor cannot be started"),
            "ProbeError: the probe's supervisor cannot be started",
        ),
    ],
)
def test_a_fault_of_the_machine_does_not_count_either(tmp_path, undisturbed, error, why):
    class Failing(ArithmeticExecutor):
        def run(self, request, folder, **rest):
            if request.kind == "train":
                raise error
            return super().run(request, folder, **rest)

    paths = create_run(SPEC, tmp_path)
    for _ in range(4):
        with pytest.raises(type(error)):
            tune(SPEC, paths, Failing(Arithmetic(budget=1000)))
        assert read_record(paths.journal).entries[-1].why == why
    assert told(finish(paths)[0]) == told(Best.read(undisturbed.best))


LOST = Lost(cause="worker", phase="backward", message="the worker was ended by SIGKILL")


class Losing(ArithmeticExecutor):
    """Loses some tries of one candidate, as a worker that is killed from outside."""

    def __init__(self, candidate: Candidate, times: int, kind: str = "train") -> None:
        super().__init__(Arithmetic(budget=1000))
        self._lost = kind, candidate
        self._times = times

    def run(self, request, folder, **rest) -> ProbeResult:
        finding = super().run(request, folder, **rest)
        if (request.kind, request.candidate) == self._lost and self._times > 0:
            self._times -= 1
            return ProbeResult(answer=LOST, baseline=0, seconds=1.0)
        return finding


@pytest.mark.parametrize("kind", ["train", "prove"])
def test_a_worker_killed_from_outside_twice_changes_nothing(tmp_path, undisturbed, kind):
    expected = Best.read(undisturbed.best)
    paths = create_run(SPEC, tmp_path)
    assert told(tune(SPEC, paths, Losing(expected.candidate, 2, kind))) == told(expected)
    assert read_record(paths.journal).unknown == ()


def test_a_probe_lost_three_times_is_a_hole_that_growth_passes_over(tmp_path):
    paths = create_run(SPEC, tmp_path)
    best = tune(SPEC, paths, Losing(Candidate(micro_batch=8), 3))
    record = read_record(paths.journal)
    assert [trial.candidate.micro_batch for trial in record.history if trial.outcome.kind == "lost"] == [8]
    assert best.candidate == Candidate(micro_batch=11)  # found by its neighbours
    assert [(entry.candidate, entry.lost) for entry in best.unknown] == [(Candidate(micro_batch=8), "probe")]
    assert Best.read(paths.best).unknown == best.unknown


def test_a_rung_whose_first_candidate_was_lost_is_tried_at_another_micro_batch(tmp_path, undisturbed):
    paths = create_run(SPEC, tmp_path)
    best = tune(SPEC, paths, Losing(Candidate(), 3))
    assert best.candidate == Best.read(undisturbed.best).candidate
    assert read_record(paths.journal).path[0].candidate.micro_batch == 2


def test_a_rung_that_remains_unknown_does_not_end_the_walk(tmp_path):
    paths = create_run(SPEC, tmp_path)

    class LosingAll(ArithmeticExecutor):
        def run(self, request, folder, **rest):
            finding = super().run(request, folder, **rest)
            lost = request.kind == "train" and request.candidate.checkpointing == "none"
            return (
                ProbeResult(answer=LOST, baseline=0, seconds=1.0)
                if lost and request.candidate.micro_batch < 3
                else finding
            )

    best = tune(SPEC, paths, LosingAll(Arithmetic(budget=1000)))
    record = read_record(paths.journal)
    assert (record.path[0].node, record.path[0].edge) == ("baseline", "lost")
    assert best.candidate.checkpointing == "full"
    assert len(best.unknown) == 2


def test_what_was_lost_is_tried_again_on_demand_after_the_run_was_decided(tmp_path, undisturbed):
    expected = Best.read(undisturbed.best)
    paths = create_run(SPEC, tmp_path)
    less = tune(SPEC, paths, Losing(expected.candidate, 3))
    assert less.candidate != expected.candidate
    assert less.unknown
    assert finish(paths)[1] == []  # decided, and an ordinary resume leaves it so
    best, launched = finish(paths, retry_lost=True)
    assert (best.candidate, best.timing, best.unknown) == (expected.candidate, expected.timing, ())
    assert launched == [("train", expected.candidate), ("prove", expected.candidate)]
    assert read_record(paths.journal).unknown == ()
    assert finish(paths, retry_lost=True)[1] == []  # nothing is lost any more


def test_a_proof_lost_three_times_leaves_its_candidate_unproven(tmp_path, undisturbed):
    expected = Best.read(undisturbed.best)
    paths = create_run(SPEC, tmp_path)
    best = tune(SPEC, paths, Losing(expected.candidate, 3, "prove"))
    assert best.candidate != expected.candidate
    assert [(entry.candidate, entry.lost) for entry in best.unknown] == [(expected.candidate, "proof")]
    again, _ = finish(paths, retry_lost=True)
    assert (again.candidate, again.timing, again.unknown) == (expected.candidate, expected.timing, ())


def test_nothing_is_said_not_to_fit_that_was_lost(tmp_path):
    class LosingEverything(ArithmeticExecutor):
        def run(self, request, folder, **rest):
            finding = super().run(request, folder, **rest)
            return finding if request.kind == "inspect" else ProbeResult(answer=LOST, baseline=0, seconds=1.0)

    paths = create_run(SPEC, tmp_path)
    with pytest.raises(NothingTrained, match="--retry-lost"):
        tune(SPEC, paths, LosingEverything(Arithmetic(budget=1000)))


def test_a_probe_that_takes_the_tuner_with_it_three_times_is_given_up(tmp_path):
    paths = create_run(SPEC, tmp_path)
    fifth = Started(number=5, candidate=Candidate(), node="", why="", time="")
    for tries in (1, 2, 3):
        assert stop(paths, like(fifth), "SIGKILL")
        assert read_record(paths.journal).tries("probe", 5) == tries
    best, _ = finish(paths)
    lost = read_record(paths.journal).trial(5)
    assert (lost.outcome.kind, lost.outcome.cause) == ("lost", "tuner")
    assert [entry.number for entry in best.unknown] == [5]


def test_an_inspection_that_is_lost_each_time_is_no_fault_of_the_model(tmp_path):
    made = executor()
    made.inspection = LOST
    with pytest.raises(ProbeError):
        tune(SPEC, create_run(SPEC, tmp_path), made)
    assert len(made.launched) == 3


def test_what_was_lost_and_crashes_when_it_is_tried_again_leaves_what_worked(tmp_path):
    """It is tried again behind trials that trained, so its techniques are to blame, and not the model."""
    paths = create_run(SPEC, tmp_path)
    first = Candidate(optimizer=SPEC.optimizer)
    losing = ArithmeticExecutor(Arithmetic(budget=1000))
    losing.trains[first] = Lost(cause="worker", phase="forward", message="ended by SIGKILL")
    before = tune(SPEC, paths, losing)
    crashing = ArithmeticExecutor(Arithmetic(budget=1000))
    crashing.trains[first] = crash("RuntimeError: out of luck")
    again = tune(SPEC, paths, crashing, retry_lost=True)
    assert again.candidate == before.candidate
    assert read_record(paths.journal).trial(1).outcome.kind == "crash"
    assert tune(SPEC, paths, crashing).candidate == before.candidate
