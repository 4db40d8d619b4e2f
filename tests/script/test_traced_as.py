"""A model that is named beside a command: its trace is what is assumed, and the command is what is probed."""

from dataclasses import replace

from autotune.candidate import Candidate
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.options import RunOptions
from autotune.run.probing import probe_request
from autotune.run.spec import to_spec
from autotune.site import MachineFacts, Site
from autotune.units import MIB
from tests.fakes.runs import make_spec
from tests.memory.test_predictor import RUNG, ok, timeline, trial

GROUND = DeviceOverhead.measured("cpu", 300 * MIB)


def test_traces_are_of_the_model_and_probes_of_the_command(tmp_path):
    given = {
        "command": "python train.py {micro_batch} {accumulation}", "model": "gpt2", "seq_len": 128,
        "target_global_batch": "8 samples", "device": "cpu:1GiB",
    }  # fmt: skip
    spec = to_spec(RunOptions.load(given, "options"), lambda device, _: device, tmp_path)
    assert spec.model.command is not None
    assert spec.model.traced_as.name == "gpt2"
    site = Site.model_construct(device=_Device(), machine=MachineFacts.model_construct())
    assert probe_request(spec, site, None, Candidate(), "trace").model.name == "gpt2"
    assert probe_request(spec, site, None, Candidate(), "train").model == spec.model
    assert make_spec().model.traced_as is None


class _Device:
    torch_name = "cpu"
    budget = 1024 * MIB


def test_a_likeness_is_far_less_sure_until_two_probes_of_a_rung_outweigh_it():
    own = Predictor({RUNG.key(): timeline()}, GROUND)
    alike = Predictor({RUNG.key(): timeline()}, replace(GROUND, foreign=True))
    before = [predictor.bounds(RUNG.at(8)) for predictor in (own, alike)]
    assert before[0].mean == before[1].mean
    assert before[1].high - before[1].low > 4 * (before[0].high - before[0].low)
    # The program takes 60 MiB a sample where the model takes 40, and 50 MiB more beside.
    peaks = {size: (300 + 400 + 50 + 60 * size) * MIB for size in (2, 4, 8)}
    taught = alike.calibrated((trial(2, ok(peaks[2])), trial(4, ok(peaks[4]))), 1 << 40).bounds(RUNG.at(8))
    assert taught.low < peaks[8] < taught.high
    assert abs(taught.mean - peaks[8]) < 0.05 * peaks[8]
