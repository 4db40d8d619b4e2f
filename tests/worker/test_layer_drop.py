"""LayerDrop: what a trace and the first steps of a probe count is a step that skips no layer."""

from __future__ import annotations

import pytest
import torch

from autotune.worker.build.assembly import assemble
from autotune.worker.measuring.layer_drop import EveryLayerKept, skips_layers
from autotune.worker.measuring.measure import measure
from autotune.worker.measuring.memory_meter import meter_for
from autotune.worker.measuring.phases import Phases
from autotune.worker.tracing.trace import trace
from tests.data.requests import family, request
from tests.memory import counted
from tests.reasons import refused

LAYERS = 3
RATE = 0.9
SKIPPING = {"num_hidden_layers": LAYERS, "layerdrop": RATE}


def test_a_step_that_skips_no_layer_is_what_is_traced(tmp_path):
    asked = request(family("opt", **SKIPPING), tmp_path, precision="fp32")
    whole = request(family("opt", **{**SKIPPING, "layerdrop": 0.0}), tmp_path, precision="fp32")
    for micro_batch in (1, 4):
        predicted = trace(asked).allocated(micro_batch)
        probe = asked.model_copy(update={"candidate": asked.candidate.at(micro_batch)})
        with EveryLayerKept():
            kept = counted.measured(probe)
        torch.manual_seed(0)
        skipping = counted.measured(probe)
        assert predicted == pytest.approx(kept, rel=1e-4)
        assert predicted == pytest.approx(trace(whole).allocated(micro_batch), rel=1e-4)
        assert skipping < 0.95 * kept, "nothing would be seen otherwise"


def test_a_probe_skips_no_layer_until_its_memory_is_known(tmp_path):
    asked = request(family("opt", **SKIPPING), tmp_path, precision="fp32")
    training = assemble(asked)
    passes, ran, warm = [], [], []
    training.model.register_forward_hook(lambda *_: passes.append(1))
    for layer in training.model.model.decoder.layers:
        layer.register_forward_hook(lambda *_: ran.append(1))
    phases = Phases(lambda *_: None)
    phases.measure_with(meter_for(training.device))
    measure(asked, training, phases, lambda: warm.append(len(ran)))
    phases.meter.close()
    training.close()
    assert warm == [2 * LAYERS], "two steps of one micro-step each"
    later, timed = len(ran) - warm[0], len(passes) - 2
    assert timed > 0
    assert later < 0.5 * timed * LAYERS, "steps that are timed skip layers, as production does"


def test_a_draw_that_asks_for_a_gradient_is_drawn_too():
    with EveryLayerKept():
        drawn = torch.rand((), requires_grad=True)
    assert drawn.requires_grad
    assert drawn.item() > 0.999


def test_generators_move_on_as_without_it():
    torch.manual_seed(0)
    drawn = [torch.rand(()), torch.rand(3), torch.rand(())]
    torch.manual_seed(0)
    with EveryLayerKept():
        kept = [torch.rand(()), torch.rand(3), torch.rand((1, 1))]
    assert 0.999 < kept[0] < 1
    assert torch.equal(kept[1], drawn[1])
    assert kept[2].item() == drawn[2].item(), "of a shape that decides about samples, not about a layer"


@pytest.mark.parametrize(("rate", "expected"), [(0.1, True), (0.0, False)])
def test_rates_are_found_in_configurations_and_in_modules(tmp_path, rate, expected):
    from_config = assemble(request(family("opt", layerdrop=rate), tmp_path, precision="fp32"))
    assert skips_layers(from_config.model) is expected
    from_config.close()
    own = torch.nn.Sequential(torch.nn.Linear(2, 2))
    own[0].layer_drop = rate
    assert skips_layers(own) is expected


def test_ranks_that_would_wait_for_each_other_are_not_built(tmp_path):
    """Tried for real: two ranks under fsdp2, each skipping half of its layers, did not end a step in 90 s."""
    of_two = {"world_size": 2}
    model = family("opt", **SKIPPING)
    for sharding in ("fsdp2", "zero2"):
        with refused("sharding", "context"):
            trace(request(model, tmp_path, precision="fp32", sharding=sharding).model_copy(update=of_two))
    copies = request(model, tmp_path, precision="fp32", sharding="ddp").model_copy(update=of_two)
    assert trace(copies).allocated(1) > 0
