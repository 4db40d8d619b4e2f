"""The kernel of attention that ran is the one that is told, whatever was asked for."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as imported
from torch.utils.checkpoint import checkpoint

from autotune.worker.build.composition import assemble
from autotune.worker.measuring.attention_kernel import AttentionKernels, CompiledAttention
from autotune.worker.measuring.measure import compiled_attention
from autotune.worker.measuring.steps import Stepper
from autotune.worker.replacing import replaced
from autotune.worker.techniques import compilation
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
def compiled():
    torch._dynamo.reset()
    yield torch.compile(
        lambda tensor: imported(tensor, tensor, tensor, is_causal=True) * 2, backend="aot_eager"
    )
    torch._dynamo.reset()


def test_compiled_code_tells_its_kernel_by_what_it_calls(compiled):
    compiled(QUERY).sum().backward()
    graphs = counters["stats"]["unique_graphs"]
    with CompiledAttention() as kernels:
        compiled(QUERY)
    assert kernels.kernels == ("flash",)
    assert counters["stats"]["unique_graphs"] == graphs, "nothing is compiled for looking"


def test_a_probe_of_compiled_blocks_says_which_kernel_ran(compiled, tmp_path):
    with replaced([(compilation, "BACKEND", "aot_eager")]):
        training = assemble(request(family("llama"), tmp_path, compile="regional", precision="fp32"))
    training.loss(training.batch(0, 2)).backward()
    stepper = Stepper(training, 2, None)
    assert compiled_attention(stepper) == ("flash",)
    training.close()
