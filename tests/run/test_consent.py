"""What a run was allowed to try, though it changes what is learned: asked for, tried, and told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.options import RunOptions
from autotune.outcome import Oom, Outcome
from autotune.reporting.winner import winner_rows
from autotune.run.best import Best
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.run.spec import read_options, to_spec
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec

MINIMAL = {"model": "tiny-gpt2", "target_global_batch": "64K", "device": "cpu:1GiB"}


def spec_of(**options):
    return to_spec(RunOptions.load({**MINIMAL, **options}, "options"), lambda device, _: device, Path.cwd())


def test_names_are_given_one_by_one_or_with_commas_and_in_a_file(tmp_path):
    names = ("adamw-8bit", "bf16-pure", "lora")
    assert spec_of(allow=["LoRA,adamw8bit", "bf16-pure"]).allow == names
    assert spec_of(allow="bf16-pure, lora,adamw-8bit,").allow == names
    assert spec_of().allow == ()
    file = tmp_path / "run.yaml"
    file.write_text("model: tiny-gpt2\ntarget_global_batch: 64K\nallow: [lora, sgd]\n")
    assert read_options({}, file).allow == ("lora", "sgd")


def test_all_unknown_names_are_told_with_the_other_mistakes():
    with pytest.raises(InputError) as caught:
        spec_of(allow="loar,checkpointing,lora", target_global_batch="much")
    assert caught.value.about == ("target_global_batch", "allow")
    assert len(caught.value.problems) == 3


def test_the_space_of_a_spec_stays_as_it_was_written():
    assert spec_of(space="minimal", allow="lora").space == spec_of(space="minimal").space


@dataclass(frozen=True)
class WithoutState(Arithmetic):
    """Fits nothing whose optimizer has a state."""

    def outcome(self, candidate: Candidate) -> Outcome:
        if candidate.optimizer == "sgd":
            return Arithmetic(self.budget).outcome(candidate)
        return Oom(phase="optimizer", requested=2 * self.budget, free=self.budget)


def run(tmp_path, *, device, allow=()) -> Best:
    spec = make_spec().model_copy(update={"allow": allow})
    return tune(spec, create_run(spec, tmp_path), ArithmeticExecutor(device))


def test_a_winner_by_consent_says_how_its_training_differs(tmp_path):
    best = run(tmp_path, device=WithoutState(1000), allow=("momentum", "sgd"))
    assert best.allowed == ("momentum", "sgd")
    assert best.candidate.optimizer == "sgd"
    (note,) = (note for note in best.notes if "plain bf16 training" in note)
    assert "plain SGD" in note
    assert Best.from_yaml(best.to_yaml(), "best.yaml").allowed == best.allowed
    rows = dict(winner_rows(best))
    assert rows["allowed"] == "momentum, sgd (--allow)"


def test_a_winner_that_needed_no_consent_says_only_what_was_allowed(tmp_path):
    best = run(tmp_path, device=Arithmetic(1000), allow=("sgd",))
    assert best.allowed == ("sgd",)
    assert best.candidate.optimizer == "adamw"
    assert not any("plain bf16 training" in note for note in best.notes)
