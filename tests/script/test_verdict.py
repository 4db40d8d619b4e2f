"""What was watched of a command comes to one typed verdict, each oddity to its own sentence."""

import pytest

from autotune.outcome import Crash, Lost, NonFinite, Ok, Oom, Timeout
from autotune.script.measurement import Told, facts
from autotune.script.verdict import finished, verdict
from tests.script.watched import MIB, error, refused, report, seen, step, watched

TOLD = Told(
    micro_batch=4,
    accumulation=2,
    world=1,
    steps=4,
    budget=400 * MIB,
    kind="cpu",
    data_limit=400 * MIB,
    tokens_per_sample=128,
)


def judged(*processes, told=TOLD, ended=None, **end):
    return verdict(told, seen(*processes, **end), ended or report())


def test_a_training_that_did_what_it_was_told_is_measured():
    outcome = judged(
        watched(loaders={"processes": 2, "bytes": 5 * MIB}), data={"7": {"peak": 170 * MIB, "recent": 1}}
    )
    assert isinstance(outcome, Ok)
    assert (outcome.memory.reserved, outcome.memory.device_peak) == (170 * MIB, 150 * MIB)
    assert outcome.memory.allocated == 50 * MIB
    assert outcome.timing is not None
    # The parts add up to the wall time of a step, the wait for its batch included.
    assert outcome.timing.global_step(2) == pytest.approx(0.1 + 0.09 + 0.01 + 0.001)
    assert outcome.loader_bytes == 5 * MIB


def test_facts_follow_from_one_batch_even_where_memory_ran_out_on_it():
    one = watched(records=[], steps=0, open=[[1, 128, True]], ended="exception", error=error(refused=True))
    found = facts(seen(one, exit_code=1))
    assert found is not None
    assert (found.tokens_per_sample, found.precision, found.model_class) == (128, "bf16", "Net")
    assert facts(seen(watched(model=None, records=[], steps=0))) is None


@pytest.mark.parametrize(("process", "said"), [
    (watched(records=[step(samples=16, tokens=2048)] * 6), "took 8 samples on a device, and 4 were asked for"),
    (watched(records=[step(micro_steps=4, samples=16)] * 6), "took 4 micro-steps, and 2 were asked for"),
    (watched(records=[step(tokens=800)] * 6), "rows hold 100 to 100 tokens, and 128 were counted"),
    (watched(records=[], steps=0, open=[[4, 512, True]] * 17, ended="no_step"), "17 forward passes under grad, and"),
    (watched(steps=1, records=[step()], open=[[4, 512, True]] * 17, ended="no_step"), "17 micro-steps went by without"),
    (watched(model=None, steps=0, records=[], ended="end"), "no module was called under grad"),
    (watched(steps=2, records=[step()] * 2, ended="end"), "by itself after 2 optimizer steps, and a probe needs 4"),
])  # fmt: skip
def test_a_command_that_does_something_else_is_told_so(process, said):
    outcome = judged(process)
    assert isinstance(outcome, Crash)
    assert outcome.reason == "command"
    assert said in outcome.message


def test_nothing_watched_names_what_python_was_started_with():
    outcome = judged()
    assert isinstance(outcome, Crash)
    assert "python -m autotune.watch" in outcome.message


def test_a_refusal_that_was_caught_is_out_of_memory():
    outcome = judged(watched(ooms=[refused("backward")], ended="swallowed_oom"))
    assert isinstance(outcome, Oom)
    assert (outcome.phase, outcome.requested) == ("backward", 512)
    assert "the command caught that" in outcome.message
    raised = judged(watched(error=error(refused=True, phase="optimizer"), ended="exception"), exit_code=1)
    assert isinstance(raised, Oom)
    assert raised.phase == "optimizer"


def test_of_ranks_memory_explains_first_and_the_count_is_checked():
    told = Told(**{**vars(TOLD), "world": 2})
    fine, second = (
        watched(),
        watched(pid=8, rank=1, memory={"baseline": 0, "peak": 200 * MIB, "data": 210 * MIB}),
    )
    both = judged(fine, second, told=told)
    assert isinstance(both, Ok)
    assert both.memory.by_rank == (160 * MIB, 210 * MIB)
    alone = judged(fine, told=told)
    assert isinstance(alone, Crash)
    assert "1 process trained, and 2 were asked for" in alone.message
    lost_peer = watched(error=error("DistBackendError", "peer is gone"), ended="exception", since=1.0)
    full = watched(pid=8, rank=1, error=error(refused=True), ended="exception", since=2.0)
    outcome = judged(lost_peer, full, told=told, exit_code=1)
    assert isinstance(outcome, Oom)
    assert outcome.rank == 1


def test_what_ended_it_from_outside_and_what_it_raised():
    assert isinstance(judged(watched(), ended=report(timed_out=True)), Timeout)
    assert isinstance(judged(exit_code=None, signal=15), Lost)
    crashed = judged(watched(error=error("KeyError", "'x'"), ended="exception"), exit_code=1)
    assert isinstance(crashed, Crash)
    assert (crashed.reason, crashed.message, crashed.traceback) == (
        "exception",
        "KeyError: 'x'",
        "Traceback: bad",
    )
    died = judged(exit_code=None, signal=11, data={"7": {"peak": 399 * MIB, "recent": 399 * MIB}})
    assert isinstance(died, Oom)
    assert isinstance(judged(exit_code=None, signal=11, data={"7": {"peak": 1, "recent": 1}}), Crash)
    assert isinstance(judged(exit_code=3), Crash)
    assert isinstance(judged(watched(records=[step(loss=float("nan"))] * 6)), NonFinite)


def test_a_command_that_hangs_at_its_exit():
    outcome = judged(watched(steps=2, records=[step()] * 2, ended="end"), exit_code=None, hung=True)
    assert isinstance(outcome, Timeout)
    assert "hung at its exit" in outcome.message
    # After the watch has all its steps a launcher that stays is ended, and that is all.
    assert isinstance(judged(watched(), exit_code=None, hung=True), Ok)


def test_a_second_command_only_has_to_end_well():
    assert finished(TOLD, seen(watched(model=None, steps=0, records=[], ended="end")), report()) is None
    assert isinstance(finished(TOLD, seen(exit_code=2), report()), Crash)
    assert isinstance(finished(TOLD, seen(watched(error=error(refused=True)), exit_code=1), report()), Oom)
