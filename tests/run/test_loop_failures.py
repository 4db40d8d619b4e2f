"""What the loop makes of models that fail: of a bug, of native code, of what no technique makes fit."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.errors import InputError, ModelError, NothingFits, ProbeError
from autotune.outcome import Timeout, Unsupported
from autotune.reporting.document import print_report
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor, crash
from tests.fakes.runs import make_spec, start
from tests.search.test_space import BASIC


def test_nothing_fits_says_what_came_nearest_and_how_much_is_missing(tmp_path):
    with pytest.raises(
        NothingFits,
        match=r"(?s)nothing fits 5 B.*full offload at micro-batch 1, which needs at least 5 B more",
    ):
        start(tmp_path, ArithmeticExecutor(Arithmetic(budget=5)))


def test_a_bug_in_the_model_stops_the_run_with_its_traceback(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains[Candidate()] = crash()
    with pytest.raises(ModelError) as caught:
        start(tmp_path, executor)
    assert caught.value.traceback == crash().traceback
    assert caught.value.exit_code == 4
    assert [kind for kind, _ in executor.launched] == ["inspect", "train"]


def test_a_model_that_cannot_be_built_is_found_before_any_probe(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.inspection = crash("KeyError: 'hidden'")
    with pytest.raises(ModelError):
        start(tmp_path, executor)
    executor.inspection = Unsupported(reason="sequences of at most 512 tokens")
    with pytest.raises(InputError) as caught:
        start(tmp_path, executor)
    assert "sequences of at most 512 tokens" in caught.value.problems[0], "the worker's own words"


def test_a_look_at_the_model_that_fails_says_what_failed_and_names_the_flag(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))

    def said(outcome, kind):
        executor.inspection = outcome
        with pytest.raises(kind) as caught:
            start(tmp_path, executor)
        return str(caught.value), caught.value.exit_code

    text, code = said(crash("KeyError: 'tokens'"), ModelError)
    assert "was built, but failed on a first batch: KeyError" in text
    assert "cannot be built" not in text
    text, code = said(Timeout(phase="build", seconds=600.0), ModelError)
    assert "building it was cut off after 10m 00s (--probe-timeout)" in text
    assert code == 4
    text, _ = said(Timeout(phase="forward", seconds=60.0), ModelError)
    assert "its forward on a first batch was cut off after 1m 00s (--probe-timeout)" in text
    text, code = said(Timeout(phase="start", seconds=5.0), ProbeError)
    assert "not imported within 5.00 s (--probe-timeout)" in text
    assert code == 1, "this machine's fault, not the model's"


def test_a_bug_that_shows_at_a_larger_micro_batch_stops_the_run_and_every_resume(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains[Candidate(micro_batch=2)] = crash()
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    said = r"probe 2 \(bf16, micro-batch 2\) failed in forward: ValueError: no. Micro-batch 1 trained.*{largest: 1}"
    for expected in (["inspect", "train", "train"], []):  # what is known is not tried again
        executor.launched.clear()
        with pytest.raises(ModelError, match=said) as caught:
            tune(spec, paths, executor)
        assert caught.value.traceback.startswith("Traceback")
        assert [kind for kind, _ in executor.launched] == expected
    assert not paths.best.exists()


def test_a_library_s_limit_can_be_stayed_below(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains |= {Candidate(micro_batch=size): crash() for size in range(5, 65)}
    bounded = BASIC.replace("grow: {factor: 2, resolution: 0.1}", "grow: {largest: 4}")
    assert bounded != BASIC
    best, _ = start(tmp_path, executor, space_text=bounded)
    assert best.candidate == Candidate(micro_batch=4)


def test_a_technique_that_crashes_beside_a_rung_that_works_is_named(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    broken = Candidate(checkpointing="full", micro_batch=13)
    executor.trains[broken] = crash("RuntimeError: a saved tensor was changed")
    best, paths = start(tmp_path, executor)
    assert best.candidate == Candidate(micro_batch=11)
    console = Console(width=200, file=io.StringIO())
    print_report(paths, console)
    said = " ".join(console.file.getvalue().split())
    assert (
        "bf16 + checkpointing: micro-batch 13: crashed (exception), RuntimeError: a saved tensor was" in said
    )


def test_a_bug_that_every_proof_shows_is_the_model_s(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    original = executor.run

    def failing(request, folder, **rest):
        finding = original(request, folder, **rest)
        return finding.model_copy(update={"answer": crash()}) if request.kind == "prove" else finding

    executor.run = failing
    with pytest.raises(ModelError, match="failed when it was relaunched, first probe 6 in forward") as caught:
        start(tmp_path, executor)
    assert caught.value.traceback.startswith("Traceback")


def test_native_code_that_dies_at_a_larger_size_only_ends_growth(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.trains[Candidate(micro_batch=4)] = crash(reason="signal")
    best, _ = start(tmp_path, executor)
    assert best.candidate == Candidate(micro_batch=2)
