"""Linear layers that multiply in 8 bits. torch multiplies such tensors on a processor too, so all of it is run.

Rounding is of 3 bits of fraction for inputs and weights (half a step is 2^-4 = 6% of a value) and of 2 for gradients
(2^-3 = 13%), each value for itself; sums over 64 of them lose most of it.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from autotune.worker.build.assembly import assemble
from autotune.worker.errors import CannotRun
from autotune.worker.techniques import compilation
from tests.data.requests import request
from tests.numerics.emulated import judged_as_on_a_gpu
from tests.numerics.runs import COPIED, MODELS, plain, train
from tests.reasons import refused

pytest.importorskip("torchao", reason="torchao is not installed: pip install 'autotune[torchao]'")


@pytest.fixture
def anywhere():
    """Let a processor take fp8, as `cuda` may."""
    with judged_as_on_a_gpu():
        yield


@pytest.fixture(scope="module")
def reference():
    with judged_as_on_a_gpu():
        return train("llama", precision="fp8")


def test_the_blocks_linear_layers_and_no_others_multiply_in_8_bits(anywhere, tmp_path):
    products = []

    class Products(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__ in {"mm", "addmm", "_scaled_mm"}:
                products.append("Float8" in type(args[0]).__name__)
            return func(*args, **(kwargs or {}))

    training = assemble(request(MODELS["llama"], tmp_path, precision="fp8"))
    layers = [name for name, part in training.model.named_modules() if type(part).__name__ == "Float8Linear"]
    assert len(layers) == 7 * 2
    assert all(".layers." in name for name in layers)
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}
    with Products():
        training.loss(training.batch(0, 4)).backward()
    assert products.count(True) == 3 * len(layers)  # forward, and backward to input and to weight
    training.close()


def test_losses_and_gradients_agree_to_the_rounding_of_8_bits(reference):
    whole = plain("llama", "fp32")
    assert reference.losses == pytest.approx(whole.losses, rel=2**-6)
    assert 2**-8 < reference.gradient_error(whole) < 2**-3


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpointing": "full", "offload": "optimizer"},
        {"checkpointing": "selective"},
        {"activation_offload": True},
    ],
    ids=str,
)
def test_what_only_moves_memory_changes_no_bit(fields, anywhere, reference):
    assert train("llama", precision="fp8", **fields) == reference


def test_compiled_blocks_round_alike(anywhere, reference, monkeypatch):
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    run = train("llama", precision="fp8", compile="regional")
    assert (counters["stats"]["unique_graphs"], dict(counters["graph_break"])) == (1, {})
    assert run == reference
    torch._dynamo.reset()


def test_shards_that_are_gathered_in_bf16_are_rounded_to_8_bits_where_they_multiply(anywhere, reference):
    run = train("llama", files=COPIED, offload="full", precision="fp8")
    assert run.losses == pytest.approx(reference.losses, rel=2**-7)
    assert 0 < run.gradient_error(reference) < 2**-3


def test_what_fp8_lacks_is_told(anywhere, tmp_path, monkeypatch):
    def told(model, seq_len=32, **config):
        spec = model.model_copy(update={"config": {**(model.config or {}), **config}}) if config else model
        asked = request(spec, tmp_path, precision="fp8").model_copy(update={"seq_len": seq_len})
        with pytest.raises(CannotRun) as refusal:
            assemble(asked)
        return str(refusal.value)

    assert "are transformers' Conv1D" in told(MODELS["gpt2"])
    assert "model.layers.0.mlp.gate_proj is 64 x 100" in told(MODELS["llama"], intermediate_size=100)
    assert "a micro-batch has 20 tokens" in told(MODELS["llama"], seq_len=20)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    from autotune.worker.techniques.float8 import use_float8

    with refused("precision", "device"):
        use_float8(torch.nn.Linear(16, 16), None, torch.device("cuda:0"), 16)


def test_a_processor_is_refused(tmp_path):
    with refused("precision", "device"):
        assemble(request(MODELS["llama"], tmp_path, precision="fp8"))
