"""The verdict is a pure function of what was seen: each way to end has its own."""

from __future__ import annotations

import signal

import pytest

from autotune.candidate import Candidate
from autotune.errors import NoDiskSpace
from autotune.outcome import Breakdown, Crash, Lost, Memory, Ok, Oom, Outcome, Sample, StepTiming, Timeout
from autotune.probe.classify import classify, counted_until
from autotune.probe.exit import Exit, Report
from autotune.probe.messages import LINE_CAP, VIOLATIONS_KEPT, Messages
from autotune.probe.protocol import DiskFull, Inspection, ProbeRequest, Progress, Result
from autotune.specs import ModelFacts, ModelSpec
from autotune.units import GIB, MIB

SAMPLE = Sample(mean=1, half_width=None, count=1)
OK = Ok(
    memory=Memory(
        allocated=1, reserved=2, device_peak=3 * GIB, budget=4 * GIB, baseline=0,
        breakdown=Breakdown(parameters=0, gradients=0, optimizer_state=0, activations=0, other=0),
    ),
    timing=StepTiming(micro_step=SAMPLE, last_micro_step=SAMPLE, optimizer_step=SAMPLE),
    phases=(), losses=(1.0, 0.9), accumulation_steps=1,
)  # fmt: skip
FACTS = ModelFacts(
    task="causal-lm", model_class="M", parameters=1, trainable_parameters=1, active_parameters=1, layers=1, hidden=1,
    block_class=None, blocks=0, tokens_per_sample=1, torch_version="2", transformers_version="5",
)  # fmt: skip
BACKWARD = Progress(phase="backward", step=2)
LIMIT = 2 * GIB


def request(kind: str = "train") -> ProbeRequest:
    return ProbeRequest(
        kind=kind, model=ModelSpec(name="m", source="preset"), candidate=Candidate(), seq_len=8, accumulation_steps=1,
        device="cpu", budget=LIMIT, seed=0, sample_seconds=1, sample_steps=1, folder="",
    )  # type: ignore[arg-type]  # fmt: skip


def ended(answer: Outcome | None = None, **ending: object) -> Report:
    return Report(
        answer=Result(outcome=answer) if answer else None, progress=BACKWARD, seconds=9, stderr_tail="last words",
        ending=Exit.model_validate({"seconds": 8, **ending}),
    )  # fmt: skip


def verdict(report: Report, kind: str = "cpu", **more: int) -> Outcome:
    limit = LIMIT if kind == "cpu" else None
    return classify(request(), report, kind=kind, data_limit=limit, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ending",
    [
        {"exit_code": 0}, {"exit_code": 3}, {"signal": signal.SIGSEGV}, {"signal": signal.SIGKILL, "timed_out": True},
        {"signal": signal.SIGKILL, "stopped": True}, {"signal": signal.SIGKILL, "oom_kills": 1},
        {"exit_code": 0, "leftovers": 3},
    ],
)  # fmt: skip
def test_the_workers_word_stands_however_it_ended(ending: dict[str, object]) -> None:
    assert verdict(ended(OK, **ending)) == OK
    oom = Oom(phase="forward", requested=5)
    assert verdict(ended(oom, **ending)) == oom


def test_the_workers_word_stands_although_its_supervisor_was_lost() -> None:
    assert verdict(Report(answer=Result(outcome=OK), seconds=1)) == OK


def test_a_deadline_names_the_phase_and_the_time() -> None:
    assert verdict(ended(signal=signal.SIGKILL, timed_out=True)) == Timeout(phase="backward", seconds=8)
    nothing_said = Report(seconds=1, ending=Exit(signal=9, timed_out=True, seconds=8))
    assert verdict(nothing_said) == Timeout(phase="start", seconds=8)


@pytest.mark.parametrize(("kind", "where"), [("cpu", "device"), ("cuda", "host")])
def test_a_kill_that_the_kernel_counted_is_out_of_memory(kind: str, where: str) -> None:
    outcome = verdict(ended(signal=signal.SIGKILL, oom_kills=1), kind)
    assert isinstance(outcome, Oom)
    assert (outcome.where, outcome.phase) == (where, "backward")


@pytest.mark.parametrize(
    "ending",
    [
        {"signal": signal.SIGSEGV, "oom_kills": 1},  # somebody else's kill
        {"signal": 63},
    ],
)
def test_a_signal_without_evidence_is_a_crash(ending: dict[str, object]) -> None:
    outcome = verdict(ended(**ending))
    assert isinstance(outcome, Crash)
    assert (outcome.reason, outcome.phase, outcome.traceback) == ("signal", "backward", "last words")


@pytest.mark.parametrize(
    "ending",
    [
        {"signal": signal.SIGKILL, "oom_kills": 0},
        {"signal": signal.SIGKILL, "oom_kills": None},
        {
            "signal": signal.SIGKILL,
            "oom_kills": 0,
            "data_recent": LIMIT,
        },  # the limit refuses, it does not kill
        {"signal": signal.SIGTERM, "data_recent": LIMIT},
        {"signal": signal.SIGINT},
        {"signal": signal.SIGHUP},
    ],
)
def test_a_worker_that_is_ended_from_outside_says_nothing_of_its_candidate(ending: dict[str, object]) -> None:
    outcome = verdict(ended(**ending))
    assert isinstance(outcome, Lost)
    assert (outcome.cause, outcome.phase) == ("worker", "backward")
    assert signal.Signals(ending["signal"]).name in outcome.message


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_native_code_that_dies_at_the_limit_was_refused_memory(number: int) -> None:
    outcome = verdict(ended(signal=number, data_recent=LIMIT - 64 * MIB))
    assert isinstance(outcome, Oom)
    assert outcome.free == 64 * MIB
    assert isinstance(verdict(ended(signal=number, data_recent=LIMIT * 9 // 10)), Crash)
    # It was near the limit once, but not when it died.
    assert isinstance(verdict(ended(signal=number, data_peak=LIMIT, data_recent=GIB)), Crash)
    assert isinstance(verdict(ended(signal=number, data_recent=LIMIT), "cuda"), Crash)


def test_an_import_that_fails_at_the_limit_was_refused_memory() -> None:
    crash = Crash(
        reason="exception", phase="start", message="SystemError: error return without exception set"
    )
    outcome = verdict(ended(crash, exit_code=0, data_recent=LIMIT - MIB))
    assert isinstance(outcome, Oom)
    assert outcome.phase == "start"
    assert "SystemError" in outcome.message
    assert verdict(ended(crash, exit_code=0, data_recent=LIMIT // 2)) == crash
    later = crash.model_copy(update={"phase": "forward"})
    assert verdict(ended(later, exit_code=0, data_recent=LIMIT)) == later


@pytest.mark.parametrize("code", [0, 1, 127])
def test_an_end_without_a_word_is_a_crash(code: int) -> None:
    outcome = verdict(ended(exit_code=code, data_recent=LIMIT))
    assert isinstance(outcome, Crash)
    assert outcome.reason == "exit"
    assert f"exit code {code}" in outcome.message


def test_garbage_without_an_answer_breaks_the_protocol() -> None:
    outcome = verdict(ended(exit_code=0).model_copy(update={"violations": ("not a message: b'x'",)}))
    assert isinstance(outcome, Crash)
    assert outcome.reason == "protocol"
    assert "b'x'" in outcome.message


def test_a_lost_supervisor_is_a_lost_probe() -> None:
    for report in (Report(progress=BACKWARD, seconds=1), ended(signal=signal.SIGKILL, stopped=True)):
        outcome = verdict(report)
        assert isinstance(outcome, Lost)
        assert (outcome.cause, outcome.phase) == ("supervisor", "backward")


def test_an_answer_to_another_question_breaks_the_protocol() -> None:
    inspection = Report(answer=Inspection(facts=FACTS), seconds=1, ending=Exit(exit_code=0, seconds=1))
    outcome = verdict(inspection)
    assert isinstance(outcome, Crash)
    assert outcome.reason == "protocol"
    outcome = classify(request("inspect"), ended(OK, exit_code=0), kind="cpu")
    assert isinstance(outcome, Crash)
    assert outcome.reason == "protocol"
    oom = Oom(phase="build")
    assert classify(request("inspect"), ended(oom, exit_code=0), kind="cpu") == oom


def test_a_full_disk_is_this_machine_s_and_says_nothing_of_the_candidate() -> None:
    full = DiskFull(
        phase="save", where="/runs/1", needed=3 * GIB, free=GIB, message="No space left on device"
    )
    for kind in ("train", "prove", "inspect", "trace"):
        report = Report(answer=full, seconds=1, ending=Exit(exit_code=0, seconds=1))
        with pytest.raises(NoDiskSpace) as caught:
            classify(request(kind), report, kind="cpu")
        assert caught.value.exit_code == 1
        assert str(caught.value) == (
            "disk full in saving a checkpoint: /runs/1, 3.00 GiB were to be written, 1.00 GiB are free (No space left "
            "on device). Nothing follows from that for any candidate; make room there"
        )


def test_the_devices_own_peak_corrects_the_workers_upwards_only() -> None:
    higher = verdict(ended(OK, exit_code=0), "cuda", device_peak=3 * GIB + 5)
    assert isinstance(higher, Ok)
    assert higher.memory.device_peak == 3 * GIB + 5
    assert verdict(ended(OK, exit_code=0), "cuda", device_peak=GIB) == OK


def test_the_devices_peak_is_read_until_the_worker_did() -> None:
    answered = Result(outcome=OK, since=3.0, counted_until=2.0)
    assert counted_until(ended(OK, exit_code=0).model_copy(update={"answer": answered})) == 2.0
    assert counted_until(ended(OK, exit_code=0)) is None
    assert counted_until(ended(exit_code=0)) is None


def test_an_inbox_stays_small_whatever_comes() -> None:
    messages = Messages()
    for _ in range(3 * LINE_CAP // 65536 + 1):
        messages.feed(b"x" * 65536)
    assert len(messages._line) == 0
    messages.feed(b"\n" + b"noise\n" * 1000)
    messages.feed(Result(outcome=OK).model_dump_json().encode() + b"\n")
    assert len(messages.violations) == VIOLATIONS_KEPT
    assert messages.answer == Result(outcome=OK)


def test_an_answer_of_another_protocol_is_none() -> None:
    messages = Messages()
    messages.feed(
        Result(outcome=OK).model_dump_json().replace('"protocol":1', '"protocol":2').encode() + b"\n"
    )
    assert messages.answer is None
    assert "protocol" in messages.violations[0]


def test_a_message_may_arrive_in_pieces_and_a_cut_one_is_none() -> None:
    heard: list[Progress] = []
    messages = Messages(heard.append)
    text = BACKWARD.model_dump_json().encode() + b"\n"
    for at in range(len(text)):
        messages.feed(text[at : at + 1])
    assert heard == [BACKWARD]
    messages.feed(text[:-1])
    messages.close()
    assert heard == [BACKWARD]
    assert "cut off" in messages.violations[0]
