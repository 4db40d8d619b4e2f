"""One verdict from ranks on several machines, whose monotonic clocks do not compare."""

from __future__ import annotations

from autotune.executors.across_nodes import CLOCKS, NodePart, RankRecord, join_parts
from autotune.executors.executor import ProbeResult
from autotune.outcome import Crash, Lost, Ok, Oom
from autotune.testing.arithmetic import ok

NOW = 1_800_000_000.0
OOM = Oom(phase="backward", message="refused")
BUG = Crash(reason="exception", phase="forward", message="ValueError")
PEER = Crash(reason="exception", phase="backward", message="connection closed by peer")
DIED = Crash(reason="signal", phase="forward", message="SIGSEGV")
STOPPED = Lost(cause="supervisor", phase="backward", message="told to end")


def record(rank, outcome, since=0.0, stopped=False):
    return RankRecord(
        rank=rank, result=ProbeResult(answer=outcome, seconds=rank + 1.0), since=since, stopped=stopped
    )


def verdict(*nodes):
    parts = [NodePart(ranks=ranks, variables={"OMP_NUM_THREADS": "1"}) for ranks in nodes]
    found = join_parts(parts, 2)
    assert join_parts([NodePart.model_validate_json(part.model_dump_json()) for part in parts], 2) == found
    return found.answer


def test_all_that_trained_make_one_that_trained():
    found = verdict((record(0, ok(64, budget=100)),), (record(1, ok(70, budget=100)),))
    assert isinstance(found, Ok)
    assert found.memory.by_rank == (64, 70)


def test_memory_goes_first_wherever_it_was():
    found = verdict((record(0, PEER, NOW),), (record(1, OOM, NOW + 30),))
    assert (found.kind, found.rank) == ("oom", 1)


def test_the_first_to_fail_stands_where_clocks_can_tell():
    found = verdict((record(0, PEER, NOW + 2 * CLOCKS),), (record(1, BUG, NOW),))
    assert "ValueError" in found.message
    assert "SIGSEGV" in verdict((record(0, DIED, NOW),), (record(1, PEER, NOW + 2 * CLOCKS),)).message


def test_within_the_clocks_error_a_process_that_died_explains_what_others_say():
    found = verdict((record(0, PEER, NOW),), (record(1, DIED, NOW + 0.5 * CLOCKS),))
    assert "SIGSEGV" in found.message


def test_of_two_exceptions_the_first_stands_even_within_the_clocks_error():
    found = verdict((record(0, PEER, NOW + 0.05 * CLOCKS),), (record(1, BUG, NOW),))
    assert "ValueError" in found.message


def test_ranks_of_one_machine_keep_their_order():
    found = verdict(
        (record(0, BUG, NOW), record(1, DIED, NOW + 0.5 * CLOCKS)), (record(2, STOPPED, stopped=True),)
    )
    assert "ValueError" in found.message
