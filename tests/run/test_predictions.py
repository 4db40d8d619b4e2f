"""What the memory model knows during a run: predicted times, corrected by probes."""

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Ok, Sample
from autotune.run.events import Inspected
from autotune.run.predictions import Predictions
from autotune.search.context import SearchContext
from autotune.search.shipped import load_space
from autotune.specs import DeviceFacts, DeviceSpec, Goal, ModelSpec, RunSpec
from autotune.trial import Trial
from autotune.units import GIB
from tests.data.requests import family, request
from tests.executors.test_simulated import Traces, answer, timeline
from tests.fakes.executor import FACTS

CANDIDATE = Candidate(micro_batch=2)


def predictions(tmp_path, hardware="a100-sxm-80gb"):
    spec = RunSpec(
        model=ModelSpec(name="made", source="config", config={}), device=DeviceSpec(kind="cuda"),
        goal=Goal(target="200", seq_len=100), space=load_space("minimal").model_dump(mode="json"),
    )  # fmt: skip
    inspected = Inspected(facts=FACTS, baseline=0, budget=79 * GIB)
    facts = DeviceFacts(
        kind="cuda", name="A100", torch_name="cuda:0", budget=79 * GIB, total=80 * GIB, hardware=hardware,
        dtypes=("bf16",),
    )  # fmt: skip
    made = Predictions(
        Traces(timeline()),
        facts,
        inspected,
        SearchContext.of(spec, inspected.facts, inspected.budget),
        tmp_path,
    )
    made.trace(request(family("gpt2"), tmp_path, micro_batch=2), 60)
    return made


def trial(prediction, factor):
    """Return a probe that took `factor` times as long as the roofline says."""
    outcome = answer(micro_batch=2)
    assert isinstance(outcome, Ok)
    parts = {
        name: Sample(mean=getattr(outcome.timing, name).mean * factor, half_width=0.0, count=3)
        for name in ("micro_step", "last_micro_step", "optimizer_step")
    }
    outcome = outcome.model_copy(update={"timing": outcome.timing.model_copy(update=parts)})
    return Trial(
        number=1, candidate=CANDIDATE, node="n", why="", outcome=outcome, seconds=1, prediction=prediction
    )


def test_segments_have_addresses_for_the_whole_device_whatever_the_budget(tmp_path):
    assert predictions(tmp_path).predictor.overhead.device_memory == 80 * GIB


def test_times_are_predicted_and_corrected_by_the_probes_so_far(tmp_path):
    known = predictions(tmp_path)
    before = known.predict(CANDIDATE, ())
    first = trial(before, 1.5)
    assert first.time_error() == pytest.approx(1 / 1.5 - 1)
    after = known.predict(CANDIDATE, (first,))
    assert after.timing.last_micro_step.mean == pytest.approx(
        1.5 * before.timing.last_micro_step.mean, rel=0.05
    )
    assert after.timing.last_micro_step.half_width < before.timing.last_micro_step.half_width
    other = known.predict(CANDIDATE.at(3), (first,))
    assert other.timing.last_micro_step.mean > after.timing.last_micro_step.mean


def test_without_data_of_the_hardware_memory_alone_is_predicted(tmp_path):
    prediction = predictions(tmp_path, hardware=None).predict(CANDIDATE, ())
    assert prediction.peak > 0
    assert prediction.timing is None
    assert trial(prediction, 1.0).time_error() is None
