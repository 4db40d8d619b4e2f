"""What is offered where nothing fits: values that change what is learned, priced, and the option to type."""

from __future__ import annotations

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.errors import NothingFits, NothingTrained, ProbeError
from autotune.outcome import NonFinite, Oom
from autotune.probe.protocol import Inspection
from autotune.reporting.document import document, print_report
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.offers import SECONDS
from autotune.search.shipped import load_space
from autotune.site import MachineFacts
from autotune.techniques.consent import BY_CONSENT, changing
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.tracing.client import Trace
from autotune.units import MIB
from tests.fakes.executor import FACTS, ArithmeticExecutor
from tests.fakes.runs import make_spec

HEAVY = Arithmetic(budget=1000, weights=600, activations=2000, checkpointed=1100).in_units(16 * MIB)
"""Fits nothing, with full offload neither."""
LIGHT = Arithmetic(budget=1000, weights=200, state=0).in_units(16 * MIB)
PACKAGES = {"peft": "1", "bitsandbytes": "1"}


class Tracing:
    """Traces a heavy device; with what is `light` a light one."""

    def __init__(self, *light: str, unasked: bool = False, blind: bool = False) -> None:
        self.light = set(light)
        self.unasked = unasked
        self.blind = blind
        """Traces nothing that needs no consent."""
        self.offered: list[tuple[list[Candidate], float]] = []

    def trace(self, request, folder, *, timeout, on_progress=None):
        wanted = (request.candidate, *request.also)
        if any(changing(one) for one in wanted):
            self.offered.append((list(wanted), timeout))
            if self.unasked:
                raise ProbeError("no worker can be launched")
        if self.blind and not any(changing(one) for one in wanted):
            return {one: Trace(None, "operator x needs values") for one in wanted}
        return {
            one: Trace(
                timeline(LIGHT if self.light & {name.name for name in changing(one)} else HEAVY, one),
                seconds=1.0,
            )
            for one in wanted
        }


def end(tmp_path, tracer, packages=PACKAGES, limits=None, answer=HEAVY.outcome, parameters=10, **spec):
    executor = ArithmeticExecutor(HEAVY, room=10**12)
    counts = {"parameters": parameters, "trainable_parameters": parameters}
    executor.inspection = Inspection(facts=FACTS.model_copy(update=counts))
    executor.answer = answer
    executor.site = executor.site.model_copy(update={"machine": MachineFacts(packages=packages)})
    made = make_spec(**(limits or {})).model_copy(update=spec)
    paths = create_run(made, tmp_path)
    with pytest.raises((NothingFits, NothingTrained)) as caught:
        tune(made, paths, executor, tracer=tracer)
    return caught.value, {offer.name: offer for offer in read_record(paths.journal).decided.offers}, paths


def test_what_would_fit_is_named_with_its_predicted_peak_the_smallest_change_first(tmp_path):
    tracer = Tracing("lora", "qlora", "momentum")
    error, offers, paths = end(tmp_path, tracer)
    assert error.would_fit == ("momentum", "lora", "qlora")
    assert list(offers) == ["adamw-8bit", "bf16-pure", "adafactor", "momentum", "sgd", "lora", "qlora"], (
        "fp8 is for GPUs, and sharding for several devices"
    )
    assert offers["lora"].prediction.peak < HEAVY.budget < offers["sgd"].prediction.peak
    lines = [line for line in error.hints if "--allow lora" in line]
    assert lines, error.hints
    assert "--allow lora" in str(error)
    assert offers["lora"].candidate.offload == "full", "the leanest rung of the space"
    assert offers["qlora"].candidate.offload != "full", "4-bit weights do not go with full offload"
    assert document(paths)["decided"]["offers"][0]["name"] == "adamw-8bit"
    with (tmp_path / "report.txt").open("w") as file:
        print_report(paths, Console(file=file, width=300))
    assert lines[0] in (tmp_path / "report.txt").read_text()


def test_pricing_is_one_short_call_for_few_traces(tmp_path):
    tracer = Tracing()
    end(tmp_path, tracer)
    ((traced, timeout),) = tracer.offered
    assert len(traced) <= len(BY_CONSENT)
    assert {one.micro_batch for one in traced} == {1}
    assert timeout <= SECONDS


def test_weights_that_do_not_fit_alone_need_no_trace(tmp_path):
    """5e9 parameters take 20 GB in fp32, and in bf16 10 GB and their gradients as much: 16.8 GB are there."""
    space = {**load_space("minimal").model_dump(mode="json")}
    space["axes"]["offload"] = ["none"]
    space["constraints"] = []
    space["graph"]["nodes"].pop("offload")
    space["graph"]["nodes"]["checkpointing"]["next"].pop("oom")
    tracer = Tracing("lora", "qlora")
    error, offers, _ = end(tmp_path, tracer, parameters=5 * 10**9, space=space, answer=without_room)
    assert error.would_fit == ("qlora",)
    ((traced, _),) = tracer.offered
    assert [one.adapters for one in traced] == ["qlora"]
    assert {name for name, offer in offers.items() if offer.reason} == set(offers) - {"qlora"}


def without_room(candidate: Candidate) -> Oom:
    return Oom(phase="backward", requested=2 * HEAVY.budget, free=HEAVY.budget)


def test_what_comes_nearest_is_named_where_nothing_would_fit_either(tmp_path):
    error, offers, _ = end(tmp_path, Tracing())
    assert error.would_fit == ()
    assert all(offer.prediction is not None for offer in offers.values())
    assert len(error.hints) == 1


def test_what_lacks_a_package_is_named_with_the_reason(tmp_path):
    error, offers, _ = end(tmp_path, Tracing("lora", "sgd"), packages={"bitsandbytes": "1"})
    assert error.would_fit == ("sgd",)
    assert offers["lora"].prediction is None
    assert "peft" in offers["lora"].reason
    (line,) = (line for line in error.hints if "peft" in line)
    assert "lora, qlora" in line, "one reason is told once"


def test_nothing_is_traced_without_predictions(tmp_path):
    tracer = Tracing("lora")
    error, offers, _ = end(tmp_path, tracer, predict=False)
    assert tracer.offered == []
    assert error.would_fit == ()
    assert {offer.prediction for offer in offers.values()} == {None}
    (line,) = error.hints
    assert all(name in line for name in ("adamw-8bit", "lora"))


def test_where_some_did_not_train_what_would_fit_is_told_too(tmp_path):
    def answer(candidate):
        if candidate.offload == "full":
            return NonFinite(phase="forward", step=1, what="loss")
        return HEAVY.outcome(candidate)

    error, offers, _ = end(tmp_path, Tracing("lora", blind=True), answer=answer)
    assert type(error) is NothingTrained
    assert error.would_fit == ("lora",)
    assert offers["lora"].candidate.offload == "none", (
        "the only one that lacked memory: it was not even built"
    )

    def broken(candidate):
        return NonFinite(phase="forward", step=1, what="loss")

    error, offers, _ = end(tmp_path / "broken", Tracing("lora", blind=True), answer=broken)
    assert (offers, error.hints) == ({}, ()), "memory is not what is lacking"


def test_what_was_allowed_is_not_offered_again(tmp_path):
    error, offers, _ = end(tmp_path, Tracing("lora"), allow=("sgd",))
    assert "sgd" not in offers
    assert error.would_fit == ("lora",)


def test_a_limit_that_ended_the_search_leaves_the_space_itself_to_try_first(tmp_path):
    tracer = Tracing("lora")
    error, offers, _ = end(tmp_path, tracer, limits={"max_probes": 1}, predict=False)
    assert (offers, error.hints) == ({}, ())


def test_a_machine_that_cannot_trace_ends_the_run_as_it_would_end(tmp_path):
    error, offers, _ = end(tmp_path, Tracing("lora", unasked=True))
    assert error.would_fit == ()
    assert offers["lora"].reason == "no worker can be launched"
