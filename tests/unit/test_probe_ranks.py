"""Joining the verdicts of ranks."""

from autotune.outcome import (
    Breakdown,
    Communication,
    Crash,
    Memory,
    NonFinite,
    Ok,
    Oom,
    PhaseReport,
    Sample,
    StepTiming,
    Timeout,
)  # fmt: skip
from autotune.probe.ranks import RankOutcome, join


def ok(peak, seconds, losses=(2.0, 1.0), retries=0):
    sample = Sample(mean=seconds, half_width=None, count=1)
    return Ok(
        memory=Memory(
            allocated=peak, reserved=peak, device_peak=peak, budget=100, baseline=1, allocator_retries=retries,
            breakdown=Breakdown(parameters=1, gradients=1, optimizer_state=1, activations=1, other=1),
        ),
        timing=StepTiming(micro_step=sample, last_micro_step=sample, optimizer_step=sample),
        phases=(PhaseReport(phase="forward", seconds=1, peak=peak, end=1),),
        losses=losses,
        accumulation_steps=2,
    )  # fmt: skip


def joined(*outcomes, stopped=()):
    entries = [RankOutcome(rank, outcome, rank in stopped) for rank, outcome in enumerate(outcomes)]
    return join(entries, accumulation_steps=3)


GONE = Crash(reason="exception", phase="backward", message="Connection closed by peer")
STOPPED = Crash(reason="signal", phase="backward", message="killed by SIGKILL: it was told to stop")


def test_memory_is_the_fullest_ranks_and_speed_the_slowest():
    together = joined(ok(50, 1.0, (2.0, 1.0)), ok(60, 0.5, (4.0, 2.0), retries=2), ok(40, 2.0, (3.0, 3.0)))
    assert together.memory.peak() == 60
    assert together.memory.by_rank == (50, 60, 40)
    assert together.memory.allocator_retries == 2
    assert together.timing.global_step(3) == 8.0
    assert together.losses == (3.0, 2.0)


def test_communication_is_that_of_the_rank_that_waited_least():
    def heard(*seconds):
        made = [
            ok(1, 1).model_copy(
                update={
                    "communication": last
                    and Communication(micro_step=0.0, last_micro_step=last, optimizer_step=0.5)
                }
            )
            for last in seconds
        ]
        return joined(*made).communication

    assert heard(3.0, 1.0, 2.0).global_step(3) == 1.5
    assert heard(3.0, None) is None


def test_an_oom_explains_its_peers_exceptions_whoever_came_first():
    oom = Oom(phase="forward", requested=7, message="refused")
    assert joined(GONE, oom) == oom.model_copy(update={"rank": 1, "message": "rank 1: refused"})
    assert joined(ok(1, 1), oom).rank == 1


def test_a_process_that_died_explains_its_peers_exceptions():
    died = Crash(reason="signal", phase="forward", message="killed by SIGSEGV")
    assert joined(GONE, died).message == "rank 1: killed by SIGSEGV"


def test_what_was_stopped_explains_nothing_unless_all_were():
    assert joined(STOPPED, GONE, stopped={0}).message == "rank 1: Connection closed by peer"
    assert joined(STOPPED, STOPPED, stopped={0, 1}).reason == "signal"


def test_what_a_rank_says_comes_before_a_deadline():
    late = Timeout(phase="backward", seconds=9)
    assert joined(late, GONE).kind == "crash"
    assert joined(late, late) == late
    lost = NonFinite(phase="forward", step=1, what="loss")
    assert joined(GONE, lost, late) == lost
