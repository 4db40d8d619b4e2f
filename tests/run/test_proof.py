"""What a relaunch may differ by."""

import math

import pytest

from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.outcome import Drift, Ok
from autotune.reporting.arithmetic import sums
from autotune.reporting.winner import winner_rows
from autotune.reporting.winner_card import winner_card
from autotune.run.proof import PEAK, SPEED, after_proofs, allowing_more, judge
from autotune.search.comparison import CPU_NOISE
from autotune.search.selection import throughput
from autotune.techniques.families import title as title_of
from autotune.testing.arithmetic import ok
from autotune.training_command import TrainingCommand
from autotune.trial import ProofFinished, Trial
from autotune.units import MIB
from tests.configurations import make_best


@pytest.mark.parametrize(
    ("gpus", "device", "passed"), [(4, "cpu", True), (1, "cpu", True), (4, "cuda", False)]
)
def test_what_libraries_hold_on_a_processor_fails_no_proof_of_a_tiny_model(gpus, device, passed):
    best = make_best(gpus=gpus, device=device)
    best = best.model_copy(update={"memory": best.memory.model_copy(update={"allocated": 16 * MIB})})

    def proven(allocated):
        memory = best.memory.model_copy(update={"allocated": allocated})
        fine = Ok(memory=memory, timing=best.timing, phases=(), losses=(5.0, 4.0), accumulation_steps=3)
        proof = judge(best, fine, 1.0, Limits(), judge_speed=False)
        (check,) = [check for check in proof.checks if check.name == "peak memory"]
        assert (check.tolerance, check.floor) == (0.05, CPU_NOISE if device == "cpu" else None), (
            "as they were judged by"
        )
        return proof.passed

    assert proven(16 * MIB + CPU_NOISE) is proven(16 * MIB - CPU_NOISE) is passed
    assert proven(16 * MIB + 1_105_920) is passed, "as far apart as was measured"
    assert not proven(17 * MIB + CPU_NOISE)
    assert not proven(15 * MIB - CPU_NOISE)


def test_a_shortfall_of_speed_is_a_failure_only_beyond_what_both_intervals_explain():
    best = make_best(device="cpu")
    speed = throughput(best.timing, best.accumulation)[1]
    fine = Ok(memory=best.memory, timing=best.timing, phases=(), losses=(5.0, 4.0), accumulation_steps=3)
    quiet, noisy = (Drift(share=share, floor=0.02, halves=1, repeats=0) for share in (0.02, 0.4))
    for recorded, interval, drift, passed in (
        (speed, 0.0, quiet, True),
        (speed / 0.75, 0.0, quiet, False),  # 25% slower where 10% is allowed
        (speed / 0.75, 0.4 * speed, quiet, True),  # the record is not that sure
        (speed / 0.75, 0.0, noisy, True),  # nor is any measurement of this run
        (speed / 0.4, 0.0, noisy, False),
    ):
        changed = best.model_copy(
            update={"tokens_per_second": recorded, "tokens_per_second_interval": interval, "drift": drift}
        )
        proof = judge(changed, fine, 1.0, Limits())
        assert proof.passed is passed
        (check,) = [check for check in proof.checks if check.name == SPEED]
        assert check.tolerance == 0.1, "the tolerance itself is not widened"
        assert passed or "that both intervals explain" in proof.why


def test_what_a_winner_leaves_free_it_left_in_its_proof_too():
    best = make_best(device="cpu")
    memory = best.memory.model_copy(
        update={"allocated": 500 * MIB, "reserved": 0, "device_peak": 650 * MIB, "budget": 1024 * MIB}
    )
    best = best.model_copy(update={"memory": memory})
    for proven, peak, free in ((None, "650", "374"), (700, "700", "324"), (600, "650", "374")):
        proof = None
        if proven is not None:
            relaunched = memory.model_copy(update={"device_peak": proven * MIB})
            fine = Ok(
                memory=relaunched, timing=best.timing, phases=(), losses=(5.0, 4.0), accumulation_steps=3
            )
            proof = judge(best, fine, 1.0, Limits(), judge_speed=False)
            assert proof.peak == proven * MIB
        shown = best.model_copy(update={"proof": proof})
        row = dict(winner_rows(shown))["memory"]
        assert row.startswith(f"{peak} MiB of 1.00 GiB at the peak, {free} MiB free")
        assert f"{peak} MiB of 1.00 GiB at the peak" in shown._repr_html_()
        (total,) = [one for one in sums(shown) if one.title == "Memory"]
        assert total.result.value == f"{free} MiB"
        assert len(total.terms) == len(total.signs) == (4 if proven == 700 else 3)
        page = "".join(winner_card(shown, memory.budget))
        assert f"<title>{peak} MiB of 1.00 GiB:" in page
        assert page.count("more in the proof 50 MiB") == (2 if proven == 700 else 0), "the bar and its legend"


@pytest.mark.parametrize(
    ("steps", "failed", "seconds"),
    [
        (1, (), 0.1),  # one step says nothing of how far it may be off
        (2, (), (2.0 * 0.1 + 0.8 * 0.2) / 2.8),  # 0.8 s beside 2 s that were measured before
        (5, (), 0.2),
        (40, (), 0.2),
        (1, (SPEED,), 0.2),  # what was slower than it may be competes with that, however short
    ],
)
def test_a_proof_replaces_what_was_measured_for_no_longer_and_is_averaged_with_what_was(
    steps, failed, seconds
):
    def measured(micro, count):
        outcome = ok(500, micro=micro, step=0.0)
        timing = outcome.timing
        optimizer = timing.optimizer_step.model_copy(update={"count": count})
        return outcome.model_copy(update={"timing": timing.model_copy(update={"optimizer_step": optimizer})})

    trial = Trial(
        number=1, candidate=Candidate(), node="grow", why="", outcome=measured(0.1, 10), seconds=1.0
    )
    assert trial.outcome.measured_seconds() == pytest.approx(10 * 2 * 0.1)
    proof = ProofFinished(
        number=1, outcome=measured(0.2, steps), passed=not failed, failed=failed, why="", seconds=1.0
    )
    (left,) = after_proofs((trial,), (proof,))
    micro_step = left.outcome.timing.micro_step
    assert micro_step.mean == pytest.approx(seconds)
    if steps == 2:
        assert micro_step.half_width == pytest.approx(math.hypot(2.0 * 0.001, 0.8 * 0.002) / 2.8)
    assert left.outcome.memory == trial.outcome.memory


def test_of_a_command_the_whole_process_is_judged_which_is_shown_and_of_others_their_tensors():
    own = make_best(device="cpu")
    own = own.model_copy(update={"memory": own.memory.model_copy(update={"allocated": 16 * MIB})})
    command = TrainingCommand(words=("python", "train.py"), folder="/", axes={"checkpointing": {}})
    commanded = own.model_copy(
        update={"model": own.model.model_copy(update={"source": "command", "command": command})}
    )
    more = own.memory.model_copy(update={"allocated": 3 * own.memory.allocated})
    fine = Ok(memory=more, timing=own.timing, phases=(), losses=(5.0, 4.0), accumulation_steps=3)
    for best, names in ((own, (PEAK,)), (commanded, ())):
        proof = judge(best, fine, 1.0, Limits(), judge_speed=False)
        assert tuple(check.name for check in proof.checks if not check.passed) == names
    (peak,) = [check for check in proof.checks if check.name == PEAK]
    assert (peak.recorded, peak.proven) == (own.memory.peak(), more.peak())
    assert own.title() == f"{title_of(own.candidate)}, {own.candidate.optimizer}"
    assert commanded.title() == (
        title_of(own.candidate, {"checkpointing"}) or "as the command's program has it"
    )


@pytest.mark.parametrize(
    ("failed", "flags"),
    [((SPEED,), ("--speed-tolerance",)), ((PEAK,), ("--memory-tolerance",)), (("loss falls",), ()),
     ((PEAK, SPEED), ("--speed-tolerance", "--memory-tolerance"))],
)  # fmt: skip
def test_only_the_tolerance_of_what_failed_is_named(failed, flags):
    said = allowing_more(
        [ProofFinished(number=1, outcome=ok(500), passed=False, why="", failed=failed, seconds=1.0)]
    )
    assert [flag for flag in ("--speed-tolerance", "--memory-tolerance") if flag in said] == list(flags)
