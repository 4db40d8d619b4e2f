"""The loop and its proofs: which candidate is proven next, what a proof corrects, what the file promises then."""

from __future__ import annotations

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.errors import NothingProven
from autotune.outcome import Ok, Oom
from autotune.reporting.document import print_report
from autotune.run.best import Best
from autotune.run.journal import read_record
from autotune.testing.arithmetic import Arithmetic, ok
from tests.fakes.executor import ArithmeticExecutor, slower
from tests.fakes.runs import start


def test_a_proof_that_fails_hands_over_to_the_next_best(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    first = Candidate(micro_batch=11)
    executor.proofs[first] = Oom(phase="evaluation")
    best, paths = start(tmp_path, executor)
    assert best.candidate != first
    assert [proof.passed for proof in read_record(paths.journal).proofs] == [False, True]


def test_a_proof_that_is_much_slower_loses_to_the_next_best(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    first = Candidate(micro_batch=11)
    executor.proofs[first] = slower(executor.device.outcome(first), 1.5)
    best, paths = start(tmp_path, executor)
    proofs = read_record(paths.journal).proofs
    assert [proof.passed for proof in proofs] == [False, True]
    assert proofs[0].failed == ("tokens per second",)
    assert best.candidate != first


def test_a_slower_proof_corrects_the_record_and_what_is_still_fastest_is_proven_again(tmp_path):
    # A device whose larger micro-batches pay so well that even 7% slower is faster than any other.
    device = Arithmetic(budget=1000, overhead=1.0, checkpointed=50)
    executor = ArithmeticExecutor(device)
    first = Candidate(micro_batch=11)
    recorded = device.outcome(first)
    executor.proofs[first] = slower(recorded, 1.07)
    best, paths = start(tmp_path, executor, speed_tolerance=0.02)
    assert [(proof.number, proof.passed) for proof in read_record(paths.journal).proofs] == [
        (6, False),
        (6, True),
    ]
    assert best.candidate == first
    assert best.timing == slower(recorded, 1.07).timing


def test_best_yaml_promises_what_its_proof_measured_and_says_what_it_is_not_told_from(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    first = Candidate(micro_batch=11)
    recorded = executor.device.outcome(first)
    executor.proofs[first] = slower(recorded, 1.08)
    told, _ = start(tmp_path, executor)
    # A probe and its proof 8% apart: what is 3% ahead of the proof may be no faster. Finals tell it where they pay.
    assert [(pair.candidate.micro_batch, pair.rounds) for pair in told.finals] == [(8, 2), (32, 2)]
    assert all(pair.slower > pair.slower_interval for pair in told.finals)
    assert told.drift.repeats == 1 + 3 * 2
    assert (told.candidate, told.chosen_by, told.alternatives) == (first, "speed", ())
    best, paths = start(tmp_path, executor, training_time=0.1)
    assert best.candidate == first
    assert best.timing == slower(recorded, 1.08).timing
    (check,) = [check for check in best.proof.checks if check.name == "tokens per second"]
    assert best.tokens_per_second == check.proven < check.recorded
    assert (best.drift.repeats, best.finals, best.chosen_by) == (1, (), "proof")
    others = {(other.candidate.checkpointing, other.candidate.micro_batch) for other in best.alternatives}
    assert ("full", 32) in others
    assert Best.read(paths.best) == best
    with (tmp_path / "report.txt").open("w") as file:
        print_report(paths, Console(file=file, width=200))
    text = (tmp_path / "report.txt").read_text()
    assert "not distinguishable by speed from" in text
    assert "chosen for its proof, which held" in text
    assert "micro-batch 32: not distinguishable (measured" in text


def test_a_faster_proof_holds(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    first = Candidate(micro_batch=11)
    executor.proofs[first] = slower(executor.device.outcome(first), 0.5)
    best, _ = start(tmp_path, executor)
    assert best.candidate == first


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (ok(8 << 20, budget=1000), "peak memory"),  # beyond what a processor's peaks differ by
        (ok(950, budget=1000).model_copy(update={"losses": (2.0, 3.0)}), "loss did not fall"),
    ],
)
def test_each_check_of_the_proof_can_fail(tmp_path, outcome, said):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    first = Candidate(micro_batch=11)
    recorded = executor.device.outcome(first)
    assert isinstance(recorded, Ok)
    executor.proofs[first] = outcome.model_copy(update={"timing": recorded.timing})
    _, paths = start(tmp_path, executor, memory_tolerance=0.04)
    assert said in read_record(paths.journal).proofs[0].why


def test_when_no_proof_holds_the_run_says_so(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.device = Arithmetic(budget=1000)
    original = executor.run

    def failing(request, folder, **rest):
        finding = original(request, folder, **rest)
        if request.kind == "prove":
            return finding.model_copy(update={"answer": Oom(phase="save")})
        return finding

    executor.run = failing
    with pytest.raises(NothingProven):
        start(tmp_path, executor)
