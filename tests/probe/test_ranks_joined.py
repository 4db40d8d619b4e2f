"""Joining the verdicts of ranks."""

from itertools import permutations

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
    StepEnergy,
    StepTiming,
    Stress,
    Timeout,
)  # fmt: skip
from autotune.probe.ranks import RankOutcome, join
from autotune.racing import SpeedBound


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


def joined(*outcomes, since=None, stopped=()):
    """Return what outcomes of ranks 0, 1, ... are joined to, the same in every order in which they may be given."""
    since = since or [0.0] * len(outcomes)
    entries = [
        RankOutcome(rank, outcome, since[rank], rank in stopped) for rank, outcome in enumerate(outcomes)
    ]
    first, *others = [join(order, accumulation_steps=3) for order in permutations(entries)]
    assert all(other == first for other in others)
    return first


GONE = Crash(reason="exception", phase="backward", message="Connection closed by peer")
STOPPED = Crash(reason="signal", phase="backward", message="killed by SIGKILL: it was told to stop")


def test_memory_is_the_fullest_ranks_and_speed_the_slowest():
    together = joined(ok(50, 1.0, (2.0, 1.0)), ok(60, 0.5, (4.0, 2.0), retries=2), ok(40, 2.0, (3.0, 3.0)))
    assert together.memory.peak() == 60
    assert together.memory.by_rank == (50, 60, 40)
    assert together.memory.allocator_retries == 2
    assert together.timing.global_step(3) == 8.0
    assert together.losses == (3.0, 2.0)


def test_ranks_that_ended_early_take_at_least_as_long_as_the_slowest():
    def early(peak, seconds):
        bound = SpeedBound(seconds=seconds, fastest=seconds, share=0.0, beaten_by=3.0, steps=1)
        return ok(peak, 1.0).model_copy(update={"timing": None, "bound": bound})

    together = joined(early(50, 4.0), early(60, 2.0))
    assert (together.timing, together.bound.seconds) == (None, 4.0)
    assert together.memory.by_rank == (50, 60)


def spending(counter, *joules):
    parts = [Sample(mean=each, half_width=0.5, count=5) for each in joules]
    energy = StepEnergy(
        counter=counter, micro_step=parts[0], last_micro_step=parts[1], optimizer_step=parts[2]
    )
    return ok(50, 1.0).model_copy(update={"energy": energy})


def test_the_energy_of_gpus_is_added_and_that_of_one_machine_is_not():
    gpus = joined(spending("nvml", 3.0, 4.0, 1.0), spending("nvml", 2.0, 3.0, 1.0)).energy
    assert (gpus.global_step(3), gpus.interval(3)) == (2 * 5.0 + 7.0 + 2.0, 4.0)
    machine = joined(spending("rapl", 3.0, 4.0, 1.0), spending("rapl", 3.0, 4.0, 1.0)).energy
    assert machine.global_step(3) == 2 * 3.0 + 4.0 + 1.0
    assert joined(spending("nvml", 3.0, 4.0, 1.0), ok(50, 1.0)).energy is None


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


def test_the_first_to_fail_explains_the_others_whoever_was_heard_first():
    bug = Crash(reason="exception", phase="forward", message="ValueError: mine")
    assert joined(GONE, bug, GONE, since=[5.2, 5.0, 5.1]).message == "rank 1: ValueError: mine"
    lost = NonFinite(phase="forward", step=1, what="loss")
    assert joined(GONE, lost, since=[5.1, 5.0]) == lost


def test_a_death_that_a_bug_brought_about_does_not_hide_it():
    bug = Crash(reason="exception", phase="forward", message="ValueError: mine")
    aborted = Crash(reason="signal", phase="backward", message="killed by SIGABRT")
    assert joined(aborted, bug, since=[6.0, 5.0]).message == "rank 1: ValueError: mine"


def test_what_ends_after_a_deadline_began_explains_nothing():
    late = Timeout(phase="backward", seconds=9)
    died = Crash(reason="signal", phase="backward", message="killed by SIGABRT")
    oom = Oom(phase="forward", requested=7, message="refused")
    for after in (GONE, died, oom):
        assert joined(late, after, since=[9.0, 9.001]) == late
        assert joined(after, late, ok(1, 1), since=[9.001, 9.0, 0.0]) == late
    assert joined(late, late, since=[9.0, 9.0]) == late
    assert joined(Timeout(phase="forward", seconds=9), late, since=[9.0, 9.2]).phase == "forward"


def test_what_failed_before_the_deadline_explains_it():
    late = Timeout(phase="backward", seconds=9)
    assert joined(late, GONE, since=[9.0, 8.0]).kind == "crash"
    assert joined(late, Oom(phase="forward", message="refused"), GONE, since=[9.0, 8.0, 8.1]).rank == 1


def test_the_peaks_of_a_stress_are_the_fullest_rank_s():
    def stressed(peak, plain):
        left_out = Stress(
            name="loaded experts", skipped="its experts are in no module that is told which to take"
        )
        found = (Stress(name="shuffled lengths", steps=2, peak=peak), left_out)
        return ok(5, 1.0).model_copy(update={"stresses": found, "plain_peak": plain})

    joined_ranks = join([RankOutcome(0, stressed(70, 20)), RankOutcome(1, stressed(60, 30))], 4)
    assert [stress.peak for stress in joined_ranks.stresses] == [70, None]
    assert joined_ranks.plain_peak == 30
