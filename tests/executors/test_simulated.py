"""Probes of a simulated GPU: verdicts from a timeline made by hand, and what the loop makes of them."""

import dataclasses
import io

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.devices.find import find
from autotune.devices.hardware import find_hardware
from autotune.executors.simulated import SimulatedExecutor
from autotune.memory.device_overhead import CUDA_CONTEXT, CUDA_KERNELS, NCCL_BUFFERS
from autotune.memory.predictor import Predictor
from autotune.options import Limits
from autotune.outcome import Crash, Ok, Oom, Unsupported
from autotune.probe.exit import Exit, Report
from autotune.probe.protocol import Inspection, Result
from autotune.reporting import document as report
from autotune.reporting.tables import not_measured
from autotune.run.best import Best
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.run.proof import judge
from autotune.run.write_best import PREDICTED
from autotune.search.shipped import load_space
from autotune.specs import DeviceSpec, Goal, ModelSpec, RunSpec
from autotune.timeline.op_counts import OpCounts, Operator, Operators
from autotune.timeline.step_events import CATEGORIES, Accumulated, Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.tracing.client import Trace
from autotune.units import GIB, MIB
from tests.data.requests import family, request
from tests.fakes.executor import FACTS

PARAMETER, GRADIENT, STATE, ACTIVATION = (
    CATEGORIES.index(n) for n in ("parameter", "gradient", "optimizer_state", "activation")
)


def timeline(parameters=4 * GIB, activation=10 * GIB, work=True):
    """Parameters; activations of each sample; gradients while those go; two moments."""
    operators = Operators()
    operators.add(Operator("mm", "matmul", "bf16", 1, 10**13, 10**9), 10**13, 10**9, 1)
    operators.add(Operator("_fused_adamw_", "memory", "none", 1, 0, 7 * parameters), 0, 0, 1)
    micro = {"forward": [(0, 1)], "backward": [(0, 2)]}
    step = StepEvents([1, 2, ~1], [(0, "forward"), (1, "backward")], [Accumulated(2, 0, 2, False)])
    return Timeline(
        device="cuda",
        slots=Slots(
            base=[parameters, 0, parameters, 2 * parameters], slope=[0, activation, 0, 0],
            category=[PARAMETER, ACTIVATION, GRADIENT, STATE], place=[0] * 4, module=[0] * 4,
        ),
        modules=["model"], build=StepEvents([0], [(0, "build")]), micro=step, single=step,
        first_update=StepEvents([3, ~2], [(0, "optimizer")]), update=StepEvents([~2], [(0, "optimizer")]),
        work=OpCounts(operators, micro, micro, {"optimizer": [(1, 1)]}) if work else None,
        facts={"attention": "sdpa"}, attention_kernels=("flash",),
    )  # fmt: skip


class Traces:
    """A tracer with one timeline for every rung; counts what it was asked."""

    def __init__(self, timeline, reason=""):
        self.timeline, self.reason, self.asked = timeline, reason, []

    def trace(self, request, folder, *, timeout, on_progress=None):
        self.asked.append(request.candidate)
        return {request.candidate: Trace(self.timeline, self.reason)}


def inspecting(request, place, **options):
    """Stand for the worker that inspects."""
    assert request.device == "cpu"
    assert options["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    return Report(answer=Inspection(facts=FACTS), ending=Exit(exit_code=0, seconds=1), seconds=1.0)


def executor(tracer, gpu="a100-80gb", launcher=inspecting):
    return SimulatedExecutor(find(DeviceSpec(kind="sim", hardware=gpu)), tracer, launcher)


def answer(gpu="a100-80gb", tracer=None, steps=1, kind="train", world=1, **candidate):
    chosen = executor(tracer or Traces(timeline()), gpu)
    changes = {
        "kind": kind,
        "accumulation_steps": steps,
        "world_size": world,
        "budget": chosen.describe().device.budget,
    }
    probe = request(family("gpt2"), "/nowhere", **candidate).model_copy(update=changes)
    return chosen.run(probe, None, timeout=60).answer


def test_what_fits_is_answered_with_memory_and_time_that_agree():
    outcome = answer(micro_batch=2)
    assert isinstance(outcome, Ok)
    memory = outcome.memory
    assert memory.allocated >= (4 + 20 + 4 + 8) * GIB
    assert memory.device_peak == memory.reserved + CUDA_CONTEXT + CUDA_KERNELS
    assert memory.breakdown.optimizer_state == 8 * GIB
    assert memory.breakdown.activations == 20 * GIB
    assert outcome.losses == ()
    assert (outcome.attention, outcome.attention_kernels) == ("sdpa", ("flash",))
    assert [phase.phase for phase in outcome.phases] == ["forward", "backward", "optimizer"]
    assert outcome.timing.last_micro_step.mean == pytest.approx(sum(p.seconds for p in outcome.phases[:2]))
    assert outcome.timing.optimizer_step.half_width > 0
    faster = answer(gpu="h100-80gb", micro_batch=2)
    assert faster.timing.micro_step.mean < outcome.timing.micro_step.mean


def test_as_much_is_reserved_as_is_predicted_on_a_device_that_is_nearly_full():
    """Behind a hole of 44 GiB the end can grow by 43: it is taken first, and the hole is left for what comes next."""
    made = timeline(parameters=MIB // 4, activation=0)
    more = [one * GIB for one in (44, 2, 20, 18, 44)]
    slots = made.slots
    extended = Slots(
        slots.base + more, slots.slope + [0] * 5, slots.category + [ACTIVATION] * 5,
        slots.place + [0] * 5, slots.module + [0] * 5,
    )  # fmt: skip
    build = StepEvents([0, 4, 5, 6, ~4, ~6, 7, 8], [(0, "build")])
    made = dataclasses.replace(made, slots=extended, build=build)
    outcome = answer(tracer=Traces(made), micro_batch=2)
    assert isinstance(outcome, Ok)
    assert 66 * GIB <= outcome.memory.reserved < 67 * GIB
    candidate = Candidate(micro_batch=2)
    overhead = find_hardware("a100-80gb").overhead(gpus=1)
    predicted = Predictor({candidate.rung().key(): made}, overhead).predict(candidate)
    assert predicted is not None
    assert predicted.reserved < 67 * GIB, "without the device's addresses it would be above 88 GiB"


def test_what_does_not_fit_is_oom_in_the_phase_that_asked():
    outcome = answer(micro_batch=8)
    assert isinstance(outcome, Oom)
    assert outcome.phase == "forward"
    assert outcome.requested == 80 * GIB > outcome.free
    assert "predicted" in outcome.message
    # The second moments of a model that fits without them: the first optimizer step asks for them.
    large = Traces(timeline(parameters=20 * GIB, activation=GIB))
    assert answer(tracer=large, micro_batch=1).phase == "optimizer"
    assert answer(tracer=Traces(timeline(parameters=90 * GIB)), micro_batch=1).phase == "build"


def test_several_ranks_hold_buffers_of_their_own_and_reduce_gradients():
    def ranks(count, sharding):
        facts = {"attention": "sdpa", "world_size": count, "sharding": sharding, "parameters": 64 * GIB}
        made = dataclasses.replace(timeline(), facts=facts)
        return answer(tracer=Traces(made), world=count, micro_batch=2, sharding=sharding)

    alone, spread = ranks(1, "none"), ranks(8, "ddp")
    assert spread.memory.baseline == alone.memory.baseline + NCCL_BUFFERS
    assert spread.memory.device_peak == alone.memory.device_peak + NCCL_BUFFERS
    assert spread.timing.micro_step == alone.timing.micro_step
    assert alone.communication is None
    assert spread.communication.micro_step == 0 < spread.communication.last_micro_step
    # So many that backward does not hide them.
    assert spread.timing.last_micro_step.mean > alone.timing.last_micro_step.mean


def test_accumulation_takes_memory_and_time():
    once, several = answer(micro_batch=2), answer(micro_batch=2, steps=8)
    assert several.memory.allocated > once.memory.allocated
    assert several.timing.micro_step.mean > once.timing.micro_step.mean
    assert several.accumulation_steps == 2


def test_a_rung_is_traced_once():
    tracer = Traces(timeline())
    chosen = executor(tracer)
    for micro_batch in (1, 2, 3):
        probe = request(family("gpt2"), "/nowhere", micro_batch=micro_batch)
        chosen.run(probe.model_copy(update={"budget": chosen.describe().device.budget}), None, timeout=60)
    assert len(tracer.asked) == 1


def test_without_a_trace_there_is_no_answer_but_why():
    for tracer in (Traces(None, "the operator foo needs values"), Traces(timeline(work=False))):
        outcome = answer(tracer=tracer)
        assert isinstance(outcome, Unsupported)
    assert "operator foo" in answer(tracer=Traces(None, "the operator foo needs values")).reason


def test_a_prediction_is_no_proof():
    outcome = answer(kind="prove")
    assert isinstance(outcome, Unsupported)
    assert (outcome.axis, outcome.cause) == (None, "device")


def test_an_inspection_that_fails_keeps_its_verdict(tmp_path):
    crash = Crash(reason="exception", phase="build", message="no")

    def failing(request, place, **options):
        return Report(answer=Result(outcome=crash), ending=Exit(exit_code=0, seconds=1), seconds=1.0)

    chosen = executor(Traces(timeline()), launcher=failing)
    probe = request(family("gpt2"), tmp_path).model_copy(update={"kind": "inspect"})
    assert chosen.run(probe, tmp_path / "inspect", timeout=60).answer == crash


@pytest.fixture
def decided(tmp_path):
    spec = RunSpec(
        model=ModelSpec(name="made", source="config", config={}),
        device=DeviceSpec(kind="sim", hardware="a100-sxm-80gb"),
        goal=Goal(target="3200", seq_len=100), space=load_space("basic").model_dump(mode="json"),
        strategy="graph",
    )  # fmt: skip
    paths = create_run(spec, tmp_path)
    tracer = Traces(timeline())
    return tune(spec, paths, executor(tracer), tracer=tracer), paths


def test_the_loop_runs_on_predictions_and_says_so(decided):
    best, paths = decided
    assert best.evidence == "predicted"
    assert best.proof is None
    assert PREDICTED in best.notes
    assert best.device.kind == "cuda"
    assert "simulated" in best.device.name
    assert best.candidate.micro_batch == 4
    assert best.tokens_per_second_interval > 0
    assert Best.read(paths.best) == best
    document = report.document(paths)
    assert document["evidence"] == document["best"]["evidence"] == "predicted"
    assert {step[2] for step in document["path"]} == {"predicted"}
    for show in (lambda c: report.print_report(paths, c), lambda c: report.print_result(paths, best, c)):
        console = Console(record=True, width=120, file=io.StringIO())
        show(console)
        text = console.export_text()
        assert text.count("predicted, not measured: nothing was trained, the device is simulated") == 1
        assert text.index("predicted, not measured") < text.index("Winner")


def test_why_a_gpu_is_simulated_that_nobody_named_stands_above_every_result():
    auto = DeviceSpec(kind="sim", hardware="t4", because="no GPU found: NVML lists none")
    assert not_measured(auto).plain.splitlines()[-1] == "no GPU found: NVML lists none"
    assert not_measured(DeviceSpec.parse("sim:t4")).plain.endswith("the device is simulated")


def test_a_real_gpu_proves_a_prediction_that_fits_however_far_off_it_was(decided):
    best, _ = decided
    outcome = answer(micro_batch=4).model_copy(update={"losses": (5.0, 4.0)})
    memory = outcome.memory.model_copy(update={"allocated": best.memory.allocated // 2})
    proof = judge(best, outcome.model_copy(update={"memory": memory}), 1.0, Limits())
    assert proof.passed
    assert "were predicted" in proof.why
    measured = best.model_copy(update={"evidence": "measured"})
    assert not judge(measured, outcome.model_copy(update={"memory": memory}), 1.0, Limits()).passed
    rising = outcome.model_copy(update={"losses": (4.0, 5.0)})
    assert not judge(best, rising, 1.0, Limits()).passed
