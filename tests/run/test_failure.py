"""How a run without a winner ends: with what each rung came to."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from autotune.errors import CAUSES_SHOWN, NothingFits, NothingTrained
from autotune.outcome import NonFinite, Oom, Unsupported
from autotune.reporting.document import document, print_report
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec

LADDER = (
    "name: mine\ndescription: two types\naxes: {precision: [bf16, fp16]}\ngraph:\n  start: bf16\n  nodes:\n"
    "    bf16: {title: BF16, set: {precision: bf16}, next: {unsupported: fp16, non_finite: fp16, oom: fp16}}\n"
    "    fp16: {title: FP16, set: {precision: fp16}}\n"
)


class Answering(ArithmeticExecutor):
    """Gives each type its own verdict."""

    def __init__(self, **outcomes) -> None:
        super().__init__(Arithmetic(budget=1000))
        self.outcomes = outcomes

    def run(self, request, folder, *, timeout, on_progress=None):
        finding = super().run(request, folder, timeout=timeout)
        if request.kind == "inspect":
            return finding
        return finding.model_copy(update={"answer": self.outcomes[request.candidate.precision]})


def end(tmp_path, space=LADDER, limits=None, **outcomes):
    spec = make_spec(space, **(limits or {}))
    paths = create_run(spec, tmp_path)
    with pytest.raises((NothingFits, NothingTrained)) as caught:
        tune(spec, paths, Answering(**outcomes))
    return caught.value, paths


def test_nothing_trained_says_how_each_rung_ended(tmp_path):
    error, paths = end(
        tmp_path,
        bf16=Unsupported(reason="a T4 has no bf16"),
        fp16=NonFinite(phase="forward", step=2, what="loss"),
    )
    assert type(error) is NothingTrained
    assert error.exit_code == 3
    assert str(error).splitlines()[1:] == [
        "bf16, micro-batch 1: not supported: a T4 has no bf16",
        "fp16, micro-batch 1: loss not finite at step 2",
    ]
    decided = read_record(paths.journal).decided
    assert [cause.verdict for cause in decided.causes] == ["unsupported", "non_finite"]
    assert (
        json.loads(json.dumps(document(paths)))["decided"]["causes"][1]["why"] == "loss not finite at step 2"
    )
    with (tmp_path / "report.txt").open("w") as file:
        print_report(paths, Console(file=file, width=160))
    assert "fp16, micro-batch 1: loss not finite at step 2" in (tmp_path / "report.txt").read_text()


def test_memory_alone_is_nothing_fits_and_says_how_each_rung_ended(tmp_path):
    lacking = Oom(phase="backward", requested=700, free=100)
    error, _ = end(tmp_path, bf16=Unsupported(reason="a T4 has no bf16"), fp16=lacking)
    assert type(error) is NothingFits
    assert "which needs at least 600 B more" in error.headline
    assert error.causes[1] == "fp16, micro-batch 1: OOM in backward: 700 B were asked for with 100 B free"


def test_more_memory_is_not_offered_where_what_fitted_did_not_train(tmp_path):
    error, _ = end(
        tmp_path, bf16=NonFinite(phase="backward", step=1, what="gradient"), fp16=Oom(phase="backward")
    )
    assert type(error) is NothingTrained
    assert "more memory" not in str(error)


def test_a_limit_that_ended_the_search_is_named(tmp_path):
    error, paths = end(
        tmp_path, limits={"max_probes": 1}, bf16=NonFinite(phase="forward", step=1, what="loss")
    )
    assert "stopped after 1 probe (--max-probes); allow more" in error.headline
    assert read_record(paths.journal).entries[-2].reason == "max_probes"


def test_a_message_is_bounded(tmp_path):
    lines = str(NothingTrained("none", [f"rung {number}" for number in range(20)])).splitlines()
    assert len(lines) == CAUSES_SHOWN + 2
    assert lines[-1] == "and 8 more rungs"
    long = Unsupported(reason="no " * 1000)
    error, _ = end(tmp_path, bf16=long, fp16=long)
    assert max(len(line) for line in str(error).splitlines()) < 400
