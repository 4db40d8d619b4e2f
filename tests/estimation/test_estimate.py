"""Estimates: what is priced from a timeline, what is drawn, and what bad questions are told."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from autotune.bounds import MOST_SAMPLES
from autotune.candidate import Candidate
from autotune.cli import app, main
from autotune.devices.hardware import find_hardware
from autotune.errors import InputError
from autotune.estimation import pricing
from autotune.estimation.plot import DRAWN_BY, check_plot, draw
from autotune.estimation.request import EstimateRequest, estimate
from autotune.estimation.tables import accumulated, estimates_document, print_estimates
from autotune.techniques.families import title as title_of
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.timeline.curve import curve
from autotune.tracing.client import Trace
from autotune.units import GIB, MIB
from tests.executors.test_simulated import Traces
from tests.executors.test_simulated import answer as simulated
from tests.executors.test_simulated import timeline as gpu_timeline


class MadeTracer:
    """Hands out timelines of 10 GiB of weights, 8 of optimizer state and 4 for each sample."""

    def __init__(self, untraceable: str = "", cached: bool = False) -> None:
        self.untraceable = untraceable
        self.cached = cached

    def trace(self, request, folder, *, timeout, on_progress=None):
        device = Arithmetic(0, 5 * GIB, 8 * GIB, 4 * GIB, GIB // 2)
        found = {}
        for candidate in (request.candidate, *request.also):
            made = timeline(device, candidate)
            made.facts.update(tokens_per_sample=request.seq_len, seq_len=request.seq_len, seconds=0.5)
            reason = "operator x needs values" if title_of(candidate) == self.untraceable else ""
            found[candidate] = Trace(None, reason) if reason else Trace(made, cached=self.cached)
        return found


def ask(tracer=None, **options):
    return estimate(
        EstimateRequest.gather({"model": "tiny-gpt2", "gpu": "a100-40gb", **options}, Path.cwd()),
        tracer or MadeTracer(),
        Path.cwd(),
    )


def refused_for(**options):
    """Return what an estimate that is refused is refused for."""
    with pytest.raises(InputError) as caught:
        ask(**options)
    return caught.value.about


def test_one_candidate_has_every_number():
    answer = ask(checkpointing="full", micro_batch=2)
    found = estimates_document(answer)
    workspaces = 2 * find_hardware("a100-40gb").cublas_bytes()  # torch counts them as allocated
    assert found["allocated_peak_bytes"] == 19 * GIB + workspaces
    assert found["allocated_peak_bytes"] <= found["reserved_peak_bytes"] < found["device_peak_bytes"]
    assert found["interval"][0] < found["device_peak_bytes"] < found["interval"][1]
    assert found["breakdown"]["optimizer_state"] == 8 * GIB
    assert found["fits"] is True
    assert found["phase"] == "forward"
    assert sum(found["breakdown"].values()) == found["allocated_peak_bytes"]
    # One more: 18 + 18.5 GiB of tensors would fit 37.2, but optimizer state lands in the block that the first step's
    # activations left, and the second step's need a new one.
    assert found["largest_micro_batch"] == 26
    assert found["evidence"] == "predicted"
    needed = {
        "allocated_peak_bytes", "reserved_peak_bytes", "device_peak_bytes", "host_peak_bytes", "breakdown", "fits",
        "largest_micro_batch", "tokens_per_second", "trace_seconds", "price_seconds",
    }  # fmt: skip
    assert needed <= set(found)


def test_the_largest_micro_batch_is_looked_for_as_far_as_one_may_be_asked_for(monkeypatch):
    assert pricing.MOST_SAMPLES == MOST_SAMPLES
    for most, largest in ((10, 10), (26, 26), (27, 26)):
        monkeypatch.setattr(pricing, "MOST_SAMPLES", most)
        found = estimates_document(ask(checkpointing="full", micro_batch=2))
        assert found["largest_micro_batch"] == largest


@pytest.mark.parametrize(
    ("cached", "took"),
    [(False, "trace 0.5 s, price"), (True, "trace cached (0.5 s when it was made), price")],
)
def test_an_estimate_from_the_cache_says_so(cached, took):
    answer = ask(MadeTracer(cached=cached), precision="fp32")
    assert estimates_document(answer)["trace_cached"] is cached
    print_estimates(answer, console := Console(file=io.StringIO(), width=200))
    assert took in console.file.getvalue()


class NotedTracer(MadeTracer):
    """Says that the only module of its model is unfused."""

    def trace(self, request, folder, **options):
        found = super().trace(request, folder, **options)
        for trace in found.values():
            trace.timeline.unfused[trace.timeline.modules[0]] = "attention"
        return found


def test_what_the_model_itself_adds_to_the_peak_is_said_where_it_decides():
    for options in ({"precision": "fp32", "micro_batch": 4}, {"micro_batch": 4}):
        answer = ask(NotedTracer(), **options)
        entry = estimates_document(answer)
        (note,) = (entry if "precision" in options else entry["rungs"][0])["notes"]
        assert note["unfused"] == "attention"
        assert note["bytes"] >= 0.05 * answer.priced[0].estimate.allocated_peak_bytes
        print_estimates(answer, console := Console(file=io.StringIO(), width=300))
        assert console.file.getvalue().count("the model has eager attention alone") == 1
    assert not ask(precision="fp32").priced[0].estimate.notes


def test_without_a_candidate_every_rung_is_estimated():
    answer = ask()
    titles = [title_of(rung.estimate.candidate) for rung in answer.priced]
    assert titles[0] == "bf16"
    assert "bf16 + checkpointing" in titles
    assert "bf16 + checkpointing + full offload" in titles
    assert len(set(titles)) == len(titles)
    assert not [title for title in titles if title.startswith("fp32")]
    sizes = {title_of(rung.estimate.candidate): rung.estimate.largest_micro_batch for rung in answer.priced}
    assert sizes["bf16"] < sizes["bf16 + checkpointing"] < sizes["bf16 + checkpointing + optimizer offload"]


def test_a_gpu_without_bf16_is_estimated_in_fp16():
    titles = [title_of(rung.estimate.candidate) for rung in ask(gpu="v100-sxm2-32gb").priced]
    assert titles
    assert all(title.startswith("fp16") for title in titles)
    assert refused_for(gpu="v100-sxm2-32gb", precision="bf16") == ("precision",)
    assert refused_for(gpu="a100-80gb", precision="fp8") == ("precision",)


def test_a_rung_that_cannot_be_traced_is_named_and_the_others_stay():
    answer = ask(MadeTracer(untraceable="bf16"))
    rungs = estimates_document(answer)["rungs"]
    assert rungs[0]["reason"] == "operator x needs values"
    assert all("device_peak_bytes" in rung for rung in rungs[1:])


def test_every_mistake_is_told_at_once_with_the_nearest_names():
    with pytest.raises(InputError) as raised:
        ask(model="gpt2-xxl", gpu="h100-81gb", checkpointing="ful")
    told = str(raised.value)
    assert "gpt2-xl" in told
    assert "h100-80gb" in told.lower().replace("sxm-", "")
    assert "'full'" in told
    with pytest.raises(InputError) as raised:
        ask(model="gpt2-xxl", gpus=0, micro_batch="many", headroom=2, sharding="dpp")
    assert all(part in str(raised.value) for part in ("gpt2-xl", "gpus", "micro_batch", "headroom", "'ddp'"))
    assert len(raised.value.problems) == 5, "what is out of its range does not hide what is misspelt"
    assert refused_for(seq_len=4096) == ("seq_len",)
    assert refused_for(offload="full") == ("space",)


def test_a_model_whose_dimensions_do_not_divide_is_refused_with_the_reason(tmp_path):
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 50,
        "n_head": 8,
        "n_layer": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"n_embd \(50\) is not a multiple of n_head \(8\)"):
        ask(model=str(tmp_path / "config.json"))


def test_the_curve_keeps_the_peak_and_its_parts():
    made = timeline(Arithmetic(0, 100 * MIB, 200 * MIB, 40 * MIB), Candidate())
    step = curve(made, 3)
    assert max(step.totals()) == made.allocated(3)
    assert [phase for _, phase in step.phases] == ["forward", "backward"]
    assert max(curve(made, 3, points=1).totals()) == made.allocated(3)


@pytest.mark.parametrize("ending", ["png", "html"])
def test_pictures_are_written_for_any_answer(tmp_path, ending):
    file = tmp_path / f"estimate.{ending}"
    draw(ask(), file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"plotly" in content
    if ending == "html":
        assert b"optimizer state" in content
        assert b"predicted, not measured" in content


@pytest.mark.parametrize("ending", ["png", "html"])
def test_a_name_is_no_formula_and_no_markup_in_a_picture(tmp_path, ending):
    """A formula that is none ends in an error of matplotlib's, and a name may be a path of any length."""
    name = "$\\frac{$ <b onclick=alert(1)>\x1b[31m" + "x" * 300
    answer = ask(checkpointing="full")
    draw(replace(answer, model=answer.model.model_copy(update={"name": name})), tmp_path / f"one.{ending}")
    if ending == "html":
        page = (tmp_path / "one.html").read_text("utf-8").replace("\\u003c", "<").replace("\\u003e", ">")
        assert "&lt;b onclick=alert(1)" in page
        assert "<b onclick=alert(1)" not in page


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_traced(tmp_path):
    with pytest.raises(InputError, match=r"must end in \.png or \.html"):
        check_plot(tmp_path / "estimate.gif")
    with pytest.raises(InputError) as caught:
        check_plot(tmp_path / "missing" / "estimate.png")
    assert caught.value.about == ("plot",)


@pytest.mark.parametrize(("ending", "library"), DRAWN_BY.items())
def test_a_library_that_draws_and_is_missing_is_named_with_its_extra(tmp_path, monkeypatch, ending, library):
    monkeypatch.setattr("autotune.picture.installed", lambda name: None if name == library else "9.9")
    with pytest.raises(InputError, match=rf"{library} is not installed: pip install 'autotune\[plots\]'"):
        check_plot(tmp_path / f"estimate{ending}")
    check_plot(tmp_path / f"estimate{next(other for other in DRAWN_BY if other != ending)}")


def test_what_could_not_be_priced_is_an_exit_code_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("autotune.tracing.client.LocalTracer", lambda: MadeTracer(untraceable="bf16"))
    arguments = ["estimate", "--model", "tiny-gpt2", "--plot", str(tmp_path / "none.png")]
    codes = {}
    for options in (["--precision", "bf16"], ["--precision", "bf16", "--json"], ["--precision", "fp32"], []):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *options])
        codes[" ".join(options)] = ended.value.code
        said = capsys.readouterr()
        if ended.value.code:
            assert "could not be priced: operator x needs values" in said.err
    assert codes == {"--precision bf16": 6, "--precision bf16 --json": 6, "--precision fp32": 0, "": 0}


def test_the_command_prints_where_its_numbers_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    monkeypatch.setattr("autotune.tracing.client.LocalTracer", MadeTracer)
    shown = CliRunner().invoke(app, ["estimate", "--model", "tiny-gpt2", "--gpu", "a100-40gb"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("predicted, not measured")
    one = CliRunner().invoke(app, ["estimate", "--model", "tiny-gpt2", "--precision", "fp32", "--json"])
    assert json.loads(one.stdout)["candidate"]["precision"] == "fp32"


def test_an_estimate_says_what_a_run_with_a_global_batch_comes_to():
    """Both assume that micro-steps accumulate: gradients then live through the forward of the next."""
    made = gpu_timeline(activation=3 * GIB)
    made.facts.update(tokens_per_sample=1024, seconds=0.5)
    found = ask(Traces(made), gpu="a100-80gb", precision="bf16", micro_batch=2)
    priced = found.priced[0].estimate

    def run(micro_batch, steps=100):
        outcome = simulated("a100-80gb", Traces(made), steps, micro_batch=micro_batch, precision="bf16")
        return outcome.memory

    assert (priced.allocated_peak_bytes, priced.reserved_peak_bytes, priced.device_peak_bytes) == (
        run(2).allocated, run(2).reserved, run(2).device_peak
    )  # fmt: skip
    assert priced.largest_micro_batch > 2
    assert run(priced.largest_micro_batch).peak() <= priced.usable_bytes
    assert run(priced.largest_micro_batch + 1).peak() > priced.usable_bytes
    alone = ask(Traces(made), gpu="a100-80gb", precision="bf16", micro_batch=2, accumulation_steps=1)
    assert alone.priced[0].estimate.allocated_peak_bytes == run(2, steps=1).allocated < run(2).allocated


def test_the_micro_steps_that_an_estimate_assumes_stand_in_table_document_and_picture(tmp_path):
    for answer, steps in ((ask(), "8 micro-steps"), (ask(accumulation_steps=1), "1 micro-step ")):
        screen = Console(width=200, file=io.StringIO())
        print_estimates(answer, screen)
        assert f"tokens; {steps.strip()} a global step" in screen.file.getvalue()
        document = estimates_document(answer)
        assert document["accumulation_steps"] == int(steps.split()[0])
        assert {rung["accumulation_steps"] for rung in document["rungs"]} == {document["accumulation_steps"]}
        draw(answer, tmp_path / "plot.html")
        assert f"{steps.strip()} a global step" in (tmp_path / "plot.html").read_text()


def test_an_optimizer_step_inside_backward_is_estimated_without_accumulation():
    answer = ask(optimizer_in_backward=True)
    assert estimates_document(answer)["accumulation_steps"] == 1
    assert refused_for(optimizer_in_backward=True, accumulation_steps=2) == ("optimizer_in_backward",)
    everything = ask(space="everything")
    assert {rung.estimate.accumulation_steps for rung in everything.priced} <= {1, 8}
    if any(rung.estimate.candidate.optimizer_in_backward for rung in everything.priced):
        assert (
            accumulated(everything)
            == "8 micro-steps a global step (1 with the optimizer step inside backward)"
        )


def test_short_names_of_gpus():
    assert find_hardware("h100-80gb").id == "h100-sxm-80gb"


def test_several_nodes_are_estimated_with_hybrid_sharding():
    answer = ask(gpus=8, nodes=4)
    assert "hsdp" in {rung.estimate.candidate.sharding for rung in answer.priced}
    assert (answer.question.world_size, answer.question.devices) == (32, "4 x 8 x ")


def test_several_gpus_are_estimated_by_sharding():
    answer = ask(gpus=8)
    shardings = {rung.estimate.candidate.sharding for rung in answer.priced}
    assert shardings == {"ddp", "zero1", "zero2", "fsdp2"}
    full = [rung.estimate.candidate for rung in answer.priced if rung.estimate.candidate.offload == "full"]
    assert {candidate.sharding for candidate in full} == {"fsdp2"}
    assert ask(gpus=8, checkpointing="full").priced[0].estimate.candidate.sharding == "ddp"
    assert refused_for(sharding="fsdp2") == ("sharding",)


def test_ranks_that_share_a_model_are_not_sharded_unless_there_are_more():
    alone = ask(gpus=2, tensor_parallel=2).priced[0].estimate.candidate
    both = ask(gpus=4, tensor_parallel=2).priced[0].estimate.candidate
    assert (alone.sharding, both.sharding) == ("none", "fsdp2")
    assert (alone.data_ranks(2), both.data_ranks(4)) == (1, 2)
    assert refused_for(gpus=3, tensor_parallel=2) == ("tensor_parallel",)
    assert refused_for(gpus=3, tensor_parallel="3") == ("tensor_parallel",)


def test_the_largest_micro_batch_is_found_with_few_simulations(monkeypatch):
    from autotune.memory.device_overhead import DeviceOverhead
    from autotune.memory.predictor import Predictor
    from autotune.memory.requests import Requests

    simulated = []
    usage = Requests.usage
    monkeypatch.setattr(
        Requests, "usage", lambda *rest, **named: simulated.append(rest[1]) or usage(*rest, **named)
    )
    made = timeline(Arithmetic(0, 100 * MIB, 200 * MIB, 40 * MIB), Candidate())
    predictor = Predictor({}, DeviceOverhead.measured("cuda", 0, 8 * MIB)).with_timeline(Candidate(), made)
    for usable in range(1024 * MIB, 9000 * MIB, 500 * MIB):
        simulated.clear()
        largest = predictor.largest(Candidate(), usable, range(1, 4097))
        assert len(simulated) <= 8
        fresh = Predictor({}, predictor.overhead).with_timeline(Candidate(), made)
        fitting = [size for size in range(1, 250) if fresh.bounds(Candidate().at(size)).mean <= usable]
        assert largest == max(fitting, default=0)


def test_a_command_line_may_say_flash_and_off():
    given = {"model": "tiny-gpt2", "attention": "flash", "compile": "off", "loss": "chunked"}
    asked = EstimateRequest.gather(given, Path.cwd())
    assert asked.candidate == {"attention": "flash_attention_2", "compile": "none", "loss": "chunked"}
    for candidate in ({"tensor_paralel": 2}, {"device": "cuda"}):
        assert refused_for(candidate=candidate) == tuple(candidate)
    asked = EstimateRequest.gather({"model": "tiny-gpt2", "candidate": {"micro_batch": 3}}, Path.cwd())
    assert (asked.micro_batch, asked.candidate) == (3, {})


def test_known_lengths_are_priced_padded_and_packed(tmp_path):
    (tmp_path / "lengths.csv").write_text("length,count\n16,5\n100,3\n")
    answer = ask(lengths=str(tmp_path / "lengths.csv"))
    assert {rung.estimate.candidate.sequences for rung in answer.priced} == {"padded", "packed"}
    alone = ask(lengths=str(tmp_path / "lengths.csv"), space="default")
    assert {rung.estimate.candidate.sequences for rung in alone.priced} == {"padded"}
