"""What a proof trains beyond a probe's steps: every length, loaded experts, for as long as it is asked to."""

from itertools import islice, pairwise
from types import SimpleNamespace

import pytest
import torch

from autotune.lengths import Lengths
from autotune.options import Limits
from autotune.outcome import Ok, Oom, Stress
from autotune.run.best import Proof
from autotune.run.proof import judge
from autotune.units import GIB, MIB
from autotune.worker.build.assembly import assemble
from autotune.worker.measuring import prove as proving
from autotune.worker.measuring.memory_meter import meter_for
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.prove import LOSSES_KEPT, prove, thinned
from autotune.worker.measuring.stress import all_on_the_same, shuffled, stresses
from autotune.worker.measuring.verdict import Circumstances, verdict
from autotune.worker.training import Ranks
from tests.configurations import make_best
from tests.data.requests import OWN, family, request

CPU = torch.device("cpu")
LENGTHS = Lengths(file="lengths.csv", digest="0", counts=((8, 3), (32, 1)))


def proven(model, folder, phases=None, steps=6, **fields):
    probe = request(model, folder, seq_len=16, precision="fp32", **fields)
    probe = probe.model_copy(
        update={"kind": "prove", "accumulation_steps": steps, "sample_seconds": 0.01, "folder": str(folder)}
    )
    training = assemble(probe)
    phases = phases or Phases(lambda *_: None)
    phases.measure_with(meter_for(CPU))
    try:
        return prove(probe, training, phases, lambda: None)
    finally:
        phases.meter.close()
        training.close()


def own(function):
    return OWN.model_copy(update={"name": f"own_model:{function}"})


def test_a_mixture_of_experts_is_proven_at_every_length_and_with_all_tokens_on_the_same_experts(tmp_path):
    outcome = proven(family("mixtral"), tmp_path, micro_batch=2)
    assert [stress.name for stress in outcome.stresses] == ["shuffled lengths", "loaded experts"]
    for stress in outcome.stresses:
        assert stress.steps == 2, "four micro-steps at least, two of which are a step"
        assert 0 < stress.peak <= outcome.memory.peak()
    assert 0 < outcome.plain_peak <= outcome.memory.peak()
    assert outcome.optimizer_steps == len(outcome.losses) == 5, "of the others alone"
    assert outcome.accumulation_steps == 2
    assert [report.phase for report in outcome.phases] == [
        "forward", "backward", "optimizer", "evaluation", "save",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2"])
def test_any_text_can_be_shorter(tmp_path, name):
    probe = request(family(name), tmp_path, seq_len=16, micro_batch=3)
    training = assemble(probe)
    whole, short = training.batch(5, 3), training.shorter(5, 3, 9)
    assert whole.keys() == short.keys()
    assert {tuple(tensor.shape) for tensor in short.values()} == {(3, 9)}
    assert torch.isfinite(training.loss(short))
    training.close()


def test_what_cannot_differ_in_length_is_left_out_with_the_reason(tmp_path):
    probe = request(family("vit"), tmp_path)
    training = assemble(probe)
    assert stresses(probe, training) == (("shuffled lengths", "images are all of one size"),)
    training.close()
    packed = request(family("llama"), tmp_path, sequences="packed").model_copy(update={"lengths": LENGTHS})
    training = assemble(packed)
    assert stresses(packed, training) == (("shuffled lengths", "packed rows are all as long"),)
    training.close()


def test_padded_rows_are_cut(tmp_path):
    padded = request(family("llama"), tmp_path, sequences="padded").model_copy(update={"lengths": LENGTHS})
    training = assemble(padded)
    short = training.shorter(0, 3, 9)
    assert {tuple(tensor.shape) for tensor in short.values()} == {(3, 9)}
    assert "attention_mask" in short
    assert torch.isfinite(training.loss(short))
    training.close()


def test_a_model_of_one_length_is_no_failure(tmp_path):
    outcome = proven(own("build_for_one_length"), tmp_path, micro_batch=2)
    (stress,) = outcome.stresses
    assert (stress.steps, stress.peak) == (0, None)
    assert stress.skipped.startswith("rows of ")
    assert "RuntimeError: The size of tensor a" in stress.skipped
    assert outcome.evaluation_loss is not None, "and the proof goes on"
    (stress,) = proven(own("build_with_sounds"), tmp_path, micro_batch=2).stresses
    assert "makes rows no shorter than those of 16 tokens" in stress.skipped


def test_a_dataset_s_own_rows_are_shuffled(tmp_path):
    (stress,) = proven(own("build_with_dataset"), tmp_path, micro_batch=2).stresses
    assert (stress.steps, stress.skipped) == (2, "")


def test_memory_that_runs_out_at_other_lengths_says_so(tmp_path):
    phases = Phases(lambda *_: None)
    with pytest.raises(RuntimeError) as caught:
        proven(own("build_hungry_for_short_rows"), tmp_path, phases, micro_batch=2)
    at = Circumstances(phases.phase, phases.step, "cpu", free=None, short=False, stress=phases.stress)
    outcome = verdict(caught.value, at)
    assert isinstance(outcome, Oom)
    assert outcome.stress == "shuffled lengths"
    assert judge(make_best(), outcome, 1.0, Limits()).why == (
        "did not hold: out of memory in forward with shuffled lengths"
    )


def test_lengths_are_spread_and_the_longest_comes_between():
    lengths = list(islice(shuffled(1024, seed=3), 400))
    assert lengths == list(islice(shuffled(1024, seed=3), 400)), "the same on every rank"
    assert lengths[3::4] == [1024] * 100
    assert len(set(lengths)) > 200
    assert 128 <= min(lengths) < 160
    assert set(islice(shuffled(40, seed=0, multiple=16), 100)) == {16, 32, 40}
    assert set(islice(shuffled(1, seed=0), 9)) == {1}


def test_all_tokens_take_the_same_experts_only_while_they_are_asked_to(tmp_path):
    training = assemble(request(family("mixtral"), tmp_path, seq_len=16, micro_batch=2, checkpointing="full"))
    layers = [layer.mlp.experts for layer in training.model.model.layers]
    taken = []
    batch = training.batch(0, 2)

    def note(_module, args):
        taken.append(set(args[1].unique().tolist()))

    with all_on_the_same(training.model) as calls:
        handles = [experts.register_forward_pre_hook(note) for experts in layers]
        training.loss(batch).backward()
    assert calls == [4], "each of two layers, and again where it is recomputed"
    assert taken == [{0, 1}] * 4
    taken.clear()
    training.loss(batch)
    assert taken == [{0, 1, 2, 3}] * 2
    for handle in handles:
        handle.remove()
    training.close()


def test_a_proof_lasts_as_long_as_it_is_asked_to(monkeypatch):
    """However soon its time is known, and three steps at least."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(proving, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    class Steady:
        training = SimpleNamespace(ranks=Ranks())
        phases = Phases(lambda *_: None)

        def step(self, micro_steps):
            clock.now += 0.5
            return micro_steps

    assert proving._train(Steady(), 7, 30.0) == [7] * 60
    assert proving._train(Steady(), 7, 0.0) == [7] * 3


def test_many_losses_are_thinned_evenly():
    assert thinned([3.0, 2.0]) == (3.0, 2.0)
    kept = thinned([float(step) for step in range(5000)])
    assert (len(kept), kept[0], kept[-1]) == (LOSSES_KEPT, 0.0, 4999.0)
    assert all(50 <= later - earlier <= 51 for earlier, later in pairwise(kept))


def judged(*found: Stress, steps=5) -> Proof:
    best = make_best(steps=64)
    best = best.model_copy(update={"memory": best.memory.model_copy(update={"allocated": 64 * MIB})})
    fine = Ok(
        memory=best.memory, timing=best.timing, phases=(), losses=(5.0, 4.0), optimizer_steps=steps,
        plain_peak=GIB // 2,
        accumulation_steps=2, stresses=found,
    )  # fmt: skip
    return judge(best, fine, 1.0, Limits(), judge_speed=False)


def test_the_worse_peak_decides_and_each_is_told():
    proof = judged(
        Stress(name="shuffled lengths", steps=9, peak=2 * GIB),
        Stress(name="loaded experts", steps=9, peak=GIB),
    )
    assert proof.passed
    peaks = "512 MiB with the longest rows; 2.00 GiB with shuffled lengths; 1.00 GiB with loaded experts"
    assert f"({peaks})" in proof.why
    assert proof.plain_peak == GIB // 2
    assert [stress.peak for stress in proof.stresses] == [2 * GIB, GIB]
    proof = judged(Stress(name="loaded experts", steps=9, peak=4 * GIB))
    assert not proof.passed
    assert proof.why == "did not hold: peak with loaded experts 4.00 GiB is more than the budget of 3.00 GiB"
    proof = judged(Stress(name="shuffled lengths", skipped="images are all of one size"))
    assert proof.passed
    assert "; without shuffled lengths: images are all of one size)" in proof.why


def test_a_proof_says_how_many_of_a_global_step_s_micro_steps_it_ran():
    proof = judged(steps=1234)
    assert "1,234 optimizer steps of 2 of 64 micro-steps" in proof.why
    assert (proof.optimizer_steps, proof.micro_steps) == (1234, 2)
