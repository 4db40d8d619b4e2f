"""An executor whose probes run on another machine: what it says of device and packages decides, not what is here."""

from __future__ import annotations

import json

import pytest

from autotune import environment
from autotune.candidate import Candidate
from autotune.executors.executor import ProbeResult
from autotune.outcome import OUTCOMES, Crash, Lost, NonFinite, Ok, Oom, Timeout, Unsupported
from autotune.probe.protocol import Inspection
from autotune.reporting.document import document
from autotune.run.best import Best
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.search.space import Space
from autotune.site import MachineFacts, Site
from autotune.specs import DeviceFacts, DeviceSpec
from autotune.techniques.check import this_machine
from autotune.testing.arithmetic import Arithmetic, ok
from tests.fakes.executor import FACTS, ArithmeticExecutor, crash
from tests.fakes.runs import make_spec

THERE = MachineFacts(
    packages={"autotune": "0.1.0", "torch": "9.9.9", "transformers": "8.8.8", "flash-attn": "2.8"},
    lacks_compiler={"cuda": "torch.compile needs triton on a GPU, and that node has none"},
    python="3.14.1", system="Linux of a node", libc="musl 1.2", processor="Graviton, 64 cores",
)  # fmt: skip
"""Has flash-attn, which no machine that tests this has, and neither liger-kernel nor Triton."""
TURING = DeviceFacts(
    kind="cuda", name="NVIDIA T4", torch_name="cuda:0", budget=1000, total=1000, driver="535", dtypes=()
)
"""Computes in neither bf16 nor fp8."""
SPACE = """\
name: elsewhere
description: one node for each thing that another machine has or lacks
axes:
  precision: [bf16, fp16]
  kernels: [torch, liger]
  compile: [none, regional]
  attention: [sdpa, flash_attention_2]
graph:
  start: bf16
  nodes:
    bf16: {title: BF16, set: {precision: bf16}, next: {unsupported: liger}}
    liger: {title: Liger, set: {precision: fp16, kernels: liger}, next: {unsupported: compiled}}
    compiled: {title: Compiled, set: {kernels: torch, compile: regional}, next: {unsupported: flash}}
    flash: {title: Flash, set: {compile: none, attention: flash_attention_2}}
"""


class Remote(ArithmeticExecutor):
    """Answers as a process elsewhere would: every request and result crosses a wire as JSON."""

    def __init__(self, device: Arithmetic, site: Site) -> None:
        super().__init__(device)
        self.site = site
        self.asked = 0
        self.moved: dict[str, Site] = {}
        """Where requests of a kind run, if not on the machine described."""

    def describe(self) -> Site:
        self.asked += 1
        return Site.model_validate_json(self.site.model_dump_json())

    def run(self, request, folder, *, timeout, on_progress=None) -> ProbeResult:
        request = type(request).model_validate_json(request.model_dump_json())
        result = super().run(request, folder, timeout=timeout, on_progress=on_progress)
        told = {
            "variables": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            "site": self.moved.get(request.kind, self.site),
        }
        return ProbeResult.model_validate_json(result.model_copy(update=told).model_dump_json())


@pytest.fixture
def nothing_here(monkeypatch):
    """Make this a login node: no torch, no transformers, no compiler, and no technique's package but liger-kernel."""
    monkeypatch.setattr(environment, "installed", lambda name: "7.7" if name == "liger-kernel" else None)
    monkeypatch.setattr(environment, "lacks_compiler", lambda kind: "no compiler here")
    assert set(this_machine().packages) == {"liger-kernel"}


def remote_run(tmp_path, **moved: Site):
    spec = make_spec(SPACE).model_copy(update={"device": DeviceSpec(kind="cuda")})
    executor = Remote(Arithmetic(budget=1000), Site(device=TURING, machine=THERE))
    executor.moved = moved
    paths = create_run(spec, tmp_path)
    return executor, tune(spec, paths, executor), paths


@pytest.mark.usefixtures("nothing_here")
def test_refusals_and_best_yaml_follow_the_machine_that_probes_run_on(tmp_path):
    executor, best, paths = remote_run(tmp_path)
    record = read_record(paths.journal)
    refused = {
        trial.node: trial.outcome.reason for trial in record.history if trial.outcome.kind == "unsupported"
    }
    assert set(refused) == {"bf16", "liger", "compiled"}
    assert "NVIDIA T4 does not compute in bf16" in refused["bf16"]
    assert "liger-kernel is not installed" in refused["liger"]  # it is here
    assert refused["compiled"] == THERE.lacks_compiler["cuda"]
    assert best.candidate.attention == "flash_attention_2"  # which is not here
    assert {candidate.attention for kind, candidate in executor.launched if kind == "train"} == {
        "flash_attention_2"
    }
    assert best.device.name == "NVIDIA T4"
    assert best.device.driver == "535"
    assert best.environment == {**THERE.environment(), "torch": FACTS.torch_version,
                                "transformers": FACTS.transformers_version}  # fmt: skip
    assert best.variables == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert Best.read(paths.best) == best
    assert executor.asked == 1
    lines = [json.loads(line) for line in paths.journal.read_text().splitlines()]
    opened = next(line for line in lines if line["type"] == "opened")
    assert Site.model_validate(opened["site"]) == Site(device=TURING, machine=THERE)
    # As the tuner's start said.
    assert {line["site"] for line in lines if line["type"] == "finished"} == {None}


@pytest.mark.usefixtures("nothing_here")
def test_what_ran_on_another_node_than_described_is_recorded_with_it_and_the_proof_s_counts(tmp_path):
    node, other = (
        Site(
            device=TURING.model_copy(update={"driver": driver}),
            machine=THERE.model_copy(update={"python": python}),
        )
        for driver, python in (("570", "3.15"), ("580", "3.16"))
    )
    _, best, paths = remote_run(tmp_path, train=node, prove=other)
    record = read_record(paths.journal)
    winner = record.decided.winner
    assert record.finished(winner).site == node
    assert record.proofs[-1].site == record.site(winner) == other
    assert (best.device.driver, best.environment["python"]) == ("580", "3.16")
    assert document(paths)["state"] == "decided"


def test_a_grid_leaves_out_what_the_machine_of_the_probes_cannot_run(tmp_path):
    spec = make_spec(SPACE, max_probes=100).model_copy(
        update={"device": DeviceSpec(kind="cuda"), "strategy": "grid"}
    )
    executor = Remote(Arithmetic(budget=1000), Site(device=TURING, machine=THERE))
    paths = create_run(spec, tmp_path)
    tune(spec, paths, executor)
    tried = {trial.candidate.rung() for trial in read_record(paths.journal).history}
    assert tried == {Candidate(precision="fp16"), Candidate(precision="fp16", attention="flash_attention_2")}
    assert Space.parse(SPACE, "elsewhere").axes["kernels"] == ("torch", "liger")


ANSWERS = (
    ok(500).model_copy(update={"step_seconds": (0.1, 0.2), "attention": "sdpa", "losses": (3.25, 1e-30)}),
    ok(500).model_copy(update={"evaluation_loss": float("inf")}),
    Oom(phase="backward", requested=10, free=3, message="tried", rank=1, stress="shuffled lengths"),
    NonFinite(phase="forward", step=2, what="loss"),
    Timeout(phase="start", seconds=3.5),
    crash(),
    Lost(cause="worker", phase="save", message="SIGKILL"),
    Unsupported(reason="no bf16 \u2028 here"),
    Inspection(facts=FACTS),
)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_a_result_survives_json_whatever_it_came_to(answer):
    result = ProbeResult(
        answer=answer, baseline=7, seconds=1.25, leftovers=2, variables={"OMP_NUM_THREADS": "1"},
        site=Site(device=TURING, machine=this_machine()),
    )  # fmt: skip
    back = ProbeResult.model_validate_json(result.model_dump_json())
    assert back == result
    assert type(back.answer) is type(answer)


def test_every_outcome_has_made_the_journey():
    assert {type(answer) for answer in ANSWERS} == {*OUTCOMES.values(), Inspection}
    assert {Ok, Crash} < {type(answer) for answer in ANSWERS}
