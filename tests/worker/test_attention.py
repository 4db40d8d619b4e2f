"""The kernel of attention that ran is the one that is told, whatever was asked for."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch
from torch._inductor.codecache import PyCodeCache
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as imported
from torch.utils.checkpoint import checkpoint

from autotune.worker.build.assembly import assemble
from autotune.worker.measuring import measure
from autotune.worker.measuring.attention_kernel import AttentionKernels, compiled_attention
from autotune.worker.measuring.memory_meter import meter_for
from autotune.worker.measuring.phases import Phases
from autotune.worker.replacing import replaced
from tests.data.requests import family, request

QUERY = torch.ones(1, 2, 8, 16, requires_grad=True)


def seen(run):
    with AttentionKernels() as kernels:
        run()
    return kernels.kernels


def attend(**options):
    return functional.scaled_dot_product_attention(QUERY, QUERY, QUERY, **options)


def test_the_kernel_is_the_one_that_torch_chose():
    assert seen(partial(attend, is_causal=True)) == ("flash",)
    assert seen(partial(attend, dropout_p=0.1)) == ("math",), "a processor's flash kernel has no dropout"
    with sdpa_kernel(SDPBackend.MATH):
        assert seen(attend) == ("math",)


def test_it_is_seen_however_a_model_calls_it():
    assert seen(lambda: imported(QUERY, QUERY, QUERY)) == ("flash",)
    assert seen(lambda: attend()[..., :8].transpose(1, 2)) == ("flash",)
    again = partial(checkpoint, lambda tensor: imported(tensor, tensor, tensor), QUERY, use_reentrant=False)
    assert seen(lambda: again().sum().backward()) == ("flash",)
    assert seen(lambda: (attend(), attend(dropout_p=0.1))) == ("flash", "math")


def test_attention_of_a_models_own_is_none_of_torchs():
    assert seen(lambda: (QUERY @ QUERY.mT).softmax(-1) @ QUERY) == ()


@pytest.mark.parametrize("frozen", [torch.no_grad, torch.inference_mode])
def test_a_pass_without_gradients_chooses_for_itself_and_is_not_asked(frozen):
    with frozen():
        assert seen(attend) == ()


@pytest.fixture
def alone():
    """Nothing is compiled in this process before the test, nor remembered of it."""
    torch._dynamo.reset()
    with replaced([(PyCodeCache, "modules", []), (PyCodeCache, "modules_no_attr", {})]):
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize(("dropout", "kernel"), [(0.0, "flash"), (0.1, "math")])
def test_compiled_code_tells_its_kernel_by_what_it_calls(alone, dropout, kernel):
    assert compiled_attention(None) == ()
    compiled = torch.compile(lambda tensor: imported(tensor, tensor, tensor, dropout_p=dropout) * 2)
    compiled(QUERY).sum().backward()
    assert compiled_attention("sdpa") == (kernel,)
    assert compiled_attention("eager") == (() if kernel == "math" else (kernel,))


def test_code_that_is_gone_tells_nothing(alone, tmp_path):
    PyCodeCache.modules.append(ModuleType("made"))
    PyCodeCache.modules[0].__file__ = str(tmp_path / "made.py")
    assert compiled_attention("sdpa") == ()


@pytest.mark.slow
def test_nothing_of_a_training_runs_behind_the_report_of_a_compiled_probe(alone, tmp_path, monkeypatch):
    """What it took would count against the budget, and has not been shown to fit."""
    asked = request(family("llama"), tmp_path, compile="regional", precision="fp32")
    training = assemble(asked)
    reported, passes = measure.report, []

    def report(*given):
        outcome = reported(*given)
        training.model.register_forward_pre_hook(lambda *_: passes.append("forward"))
        return outcome

    monkeypatch.setattr(measure, "report", report)
    phases = Phases(lambda *_: None)
    phases.measure_with(meter_for(training.device))
    outcome = measure.measure(asked, training, phases, lambda: None)
    assert outcome.attention_kernels == ("flash",)
    assert passes == []
    training.loss(training.batch(0, 2))
    assert passes == ["forward"], "a pass would have been seen"
    phases.meter.close()
    training.close()
