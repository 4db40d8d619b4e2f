"""On a GPU too, techniques change memory and not the result.

Attention's and the embedding's backward add in no fixed order on CUDA, so runs agree to rounding, not bit for
bit: sums of a few hundred fp32 terms to about 1e-5, bf16 (2^-8) to a few percent of the gradients' norm.
"""

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from autotune.tracing.cache import TraceCache  # noqa: E402 - only where torch is there
from autotune.tracing.client import LocalTracer  # noqa: E402
from autotune.worker.build import model_init  # noqa: E402
from autotune.worker.build.assembly import assemble  # noqa: E402
from autotune.worker.techniques import activation_offload, offload_store  # noqa: E402
from tests.data.requests import OWN, family, request  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]

SMALL = family("gpt2", n_embd=256, n_layer=4, n_head=4)
LARGE = family("gpt2", n_embd=768, n_layer=12, n_head=12, n_positions=512, vocab_size=50257)
LOSS = {"fp32": 1e-5, "bf16": 2e-3}
GRADIENT = {"fp32": 1e-3, "bf16": 0.05}
SEQ_LEN, STEPS = 64, 3


@dataclass
class Run:
    losses: list[float]
    gradients: list[list["torch.Tensor"]]


def whole(tensor):
    """Return a tensor of any placement as an ordinary one on the CPU."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().cpu().clone()


def train(folder, model=SMALL, weights=None, **candidate):
    training = assemble(request(model, folder, device="cuda:0", seq_len=SEQ_LEN, **candidate))
    parameters = dict(training.model.named_parameters())
    if weights is not None:
        for name, parameter in parameters.items():
            parameter.data.copy_(weights[name])
    start = {name: whole(parameter) for name, parameter in parameters.items()}
    losses, gradients = [], []
    for step in range(STEPS):
        loss = training.loss(training.place(training.batch(step, 4)))
        loss.backward()
        losses.append(loss.item())
        gradients.append([whole(p.grad) for p in parameters.values() if p.grad is not None])
        training.optimizer.step()
        training.optimizer.zero_grad()
    training.close()
    return Run(losses, gradients), start


def assert_same(run, reference, precision):
    assert run.losses == pytest.approx(reference.losses, rel=LOSS[precision])
    for ours, theirs in zip(run.gradients, reference.gradients, strict=True):
        ours, theirs = (torch.cat([gradient.flatten() for gradient in one]) for one in (ours, theirs))
        assert (ours - theirs).norm() < GRADIENT[precision] * theirs.norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("offload", ["none", "optimizer", "full"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("model", [SMALL, OWN], ids=["gpt2", "own"])
def test_techniques_agree_with_the_plain_run(model, checkpointing, offload, precision, tmp_path):
    # Full offload draws its weights on the host, so the plain run starts from what it drew.
    run, weights = train(tmp_path, model, checkpointing=checkpointing, offload=offload, precision=precision)
    reference, _ = train(tmp_path, model, weights, precision=precision)
    assert_same(run, reference, precision)


@pytest.mark.parametrize(
    "moving",
    [{"offload": "optimizer"}, {"offload": "gradients"}, {"offload": "full"}, {"activation_offload": True}],
    ids=str,
)
def test_offload_to_disk_agrees_with_the_plain_run(moving, tmp_path, monkeypatch):
    monkeypatch.setattr(offload_store, "BUFFER", 1 << 14)  # so that buffers are used in turn, many times
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 12)
    run, weights = train(tmp_path, SMALL, offload_to="disk", precision="fp32", **moving)
    reference, _ = train(tmp_path, SMALL, weights, precision="fp32")
    if moving.get("offload") == "gradients":  # they are not where the run looks for them
        assert run.losses == pytest.approx(reference.losses, rel=LOSS["fp32"])
    else:
        assert_same(run, reference, "fp32")


@pytest.mark.parametrize("model", [SMALL, OWN], ids=["gpt2", "own"])
def test_a_model_that_is_built_in_files_has_the_same_weights(model, tmp_path, monkeypatch):
    _, weights = train(tmp_path, model, offload="full", precision="fp32")
    monkeypatch.setattr(model_init, "host_is_short", lambda _: True)
    _, in_files = train(tmp_path, model, offload="full", precision="fp32")
    assert all(torch.equal(in_files[name], value) for name, value in weights.items())


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_foreach_agrees_with_fused(optimizer, tmp_path):
    run, weights = train(tmp_path, optimizer=optimizer, optimizer_kernel="foreach", precision="fp32")
    reference, _ = train(tmp_path, SMALL, weights, optimizer=optimizer, precision="fp32")
    assert_same(run, reference, "fp32")


def test_gradients_of_chosen_experts_are_rows_of_the_whole_gradient(tmp_path):
    found = []
    for patterns in ((), ("model.layers.1.mlp.experts[0,2]",)):
        model = family("mixtral").model_copy(update={"train": patterns})
        training = assemble(request(model, tmp_path, device="cuda:0", seq_len=SEQ_LEN, precision="fp32"))
        training.loss(training.place(training.batch(0, 4))).backward()
        found.append({n: p.grad for n, p in training.model.named_parameters() if p.grad is not None})
        training.optimizer.step()
        training.close()
    whole, chosen = found
    assert len(chosen) == 4
    for name, row in chosen.items():
        layer, _, rest = name.partition("parametrizations.")
        expected = whole[layer + rest.partition(".")[0]][int(name.rpartition(".")[2])]
        assert (row - expected).norm() <= GRADIENT["fp32"] * expected.norm()


@dataclass
class Usage:
    """Bytes allocated on the device."""

    parameters: int
    state: int
    """Of optimizer state, wherever it is."""
    largest: int
    """Bytes of the largest parameter."""
    rest: int
    """Between steps."""
    peak: int
    """Of the third training step."""
    optimizer: int
    """What the first optimizer step takes beyond what was there before, at its peak."""


@pytest.fixture(scope="module")
def usage(tmp_path_factory):
    measured = {}

    def measure(**candidate):
        key = tuple(candidate.items())
        if key not in measured:
            measured[key] = _measure(tmp_path_factory.mktemp("probe"), **candidate)
        return measured[key]

    return measure


def _measure(folder, **candidate):
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    training = assemble(request(LARGE, folder, device="cuda:0", seq_len=512, precision="bf16", **candidate))
    sizes = [parameter.numel() * 4 for parameter in training.model.parameters()]
    optimizer = 0
    for step in range(3):
        torch.cuda.reset_peak_memory_stats()
        training.loss(training.place(training.batch(step, 4))).backward()
        if step == 0:
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        training.optimizer.step()
        if step == 0:
            optimizer = torch.cuda.max_memory_allocated() - before
        training.optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated() - base
    state = sum(tensor.numel() * tensor.element_size() for tensor in training.optimizer.state_tensors())
    torch.cuda.synchronize()
    rest = torch.cuda.memory_allocated() - base
    training.close()
    return Usage(sum(sizes), state, max(sizes), rest, peak, optimizer)


def test_checkpointing_lowers_the_peak_and_nothing_else(usage):
    plain, checkpointed = usage(), usage(checkpointing="full")
    assert checkpointed.peak < 0.8 * plain.peak
    assert checkpointed.rest == pytest.approx(plain.rest, rel=0.01)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_offloaded_state_leaves_the_device(usage, checkpointing):
    kept = usage(checkpointing=checkpointing)
    moved = usage(checkpointing=checkpointing, offload="optimizer")
    assert moved.state == kept.state
    assert moved.rest < kept.rest - 0.95 * kept.state
    assert moved.peak < kept.peak - 0.5 * kept.state


def test_state_on_disk_leaves_the_device_as_state_on_the_host_does(usage):
    host, disk = usage(offload="optimizer"), usage(offload="optimizer", offload_to="disk")
    assert disk.state == host.state
    assert disk.rest == pytest.approx(host.rest, rel=0.01)
    assert disk.peak == pytest.approx(host.peak, rel=0.01)


def test_foreach_takes_temporaries_as_large_as_the_parameters(usage):
    fused, foreach = usage(), usage(optimizer_kernel="foreach")
    assert foreach.optimizer - fused.optimizer == pytest.approx(foreach.parameters, rel=0.05)


def test_state_is_never_on_the_device_all_at_once(usage):
    moved = usage(offload="optimizer")
    assert moved.optimizer < 3 * 2 * moved.largest + 2**20
    assert usage().optimizer > 0.95 * moved.state


def test_full_offload_leaves_little_between_steps_and_lowers_the_peak(usage):
    moved = usage(checkpointing="full", offload="full")
    assert moved.rest < 0.5 * moved.parameters
    assert moved.peak < usage(checkpointing="full", offload="optimizer").peak


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
    reason="no 8-bit tensor cores",
)
@pytest.mark.parametrize("fields", [{}, {"checkpointing": "full"}, {"compile": "regional"}], ids=str)
def test_8_bit_products_agree_to_their_rounding(fields, tmp_path):
    pytest.importorskip("torchao")
    model = family("llama", hidden_size=256, intermediate_size=512)
    reference, weights = train(tmp_path, model, precision="fp32")
    run, _ = train(tmp_path, model, weights, precision="fp8", **fields)
    assert run.losses == pytest.approx(reference.losses, rel=2**-5)
    for ours, theirs in zip(run.gradients, reference.gradients, strict=True):
        ours, theirs = (torch.cat([gradient.flatten() for gradient in one]) for one in (ours, theirs))
        assert (ours - theirs).norm() < 2**-2 * theirs.norm()
    torch._dynamo.reset()


@pytest.mark.parametrize("budget", ["75%", "25%"])
def test_a_memory_budget_agrees_with_the_plain_run(budget, tmp_path):
    model = family("llama", hidden_size=256, intermediate_size=512)
    reference, weights = train(tmp_path, model, precision="fp32")
    torch._dynamo.reset()
    run, _ = train(
        tmp_path, model, weights, precision="fp32", compile="regional", activation_memory_budget=budget
    )
    assert_same(run, reference, "fp32")
    torch._dynamo.reset()


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ligers_kernels_agree_with_torchs(precision, checkpointing, tmp_path):
    pytest.importorskip("liger_kernel")
    model = family("llama", hidden_size=256, intermediate_size=512)
    reference, weights = train(tmp_path, model, precision=precision)
    run, _ = train(
        tmp_path, model, weights, precision=precision, kernels="liger", checkpointing=checkpointing
    )
    # Other kernels sum in another order; its matrix products in fp32 may use TF32 (10 bits) inside.
    assert run.losses == pytest.approx(reference.losses, rel=2**-8)
    for ours, theirs in zip(run.gradients, reference.gradients, strict=True):
        ours, theirs = (torch.cat([gradient.flatten() for gradient in one]) for one in (ours, theirs))
        assert (ours - theirs).norm() < GRADIENT["bf16"] * theirs.norm()


def test_ligers_loss_makes_no_logits(tmp_path):
    pytest.importorskip("liger_kernel")
    model = family("llama", hidden_size=256, intermediate_size=512, vocab_size=64 * 1024)
    peaks = {}
    for kernels in ("torch", "liger"):
        training = assemble(request(model, tmp_path, device="cuda:0", seq_len=SEQ_LEN, kernels=kernels))
        for step in range(2):
            training.loss(training.place(training.batch(step, 32))).backward()
            if step == 0:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
        peaks[kernels] = torch.cuda.max_memory_allocated()
        training.close()
        del training
        torch.cuda.empty_cache()
    assert peaks["liger"] < peaks["torch"] - 4 * 32 * SEQ_LEN * 64 * 1024  # the logits in fp32


@pytest.mark.parametrize(
    "fields",
    [
        {"kernels": "liger"},
        {"precision": "fp8"},
        {"compile": "regional"},
        {"compile": "regional", "activation_memory_budget": "50%"},
        {"compile": "regional", "adapters": "lora"},
    ],
    ids=str,
)
def test_a_trace_counts_what_other_kernels_take(fields, tmp_path):
    if "kernels" in fields or "precision" in fields:
        pytest.importorskip("liger_kernel" if "kernels" in fields else "torchao")
    if "precision" in fields and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no 8-bit tensor cores")
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "vocab_size": 32 * 1024}
    model = family("llama", **sizes, max_position_embeddings=512)
    probe = request(
        model, tmp_path, device="cuda:0", seq_len=512, micro_batch=8, **{"precision": "bf16", **fields}
    )
    tracer = LocalTracer(TraceCache(tmp_path / "cache"))
    traced = tracer.trace(probe, tmp_path / "trace", timeout=300)[probe.candidate]
    assert traced.timeline is not None, traced.reason
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    training = assemble(probe)
    for step in range(2):
        training.loss(training.place(training.batch(step, 8))).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    training.close()
    # Beside it what cuBLAS takes for forward and backward, 32 MiB each at most; liger's chunks are an upper bound.
    assert traced.timeline.allocated(8) == pytest.approx(peak, rel=0.03, abs=2 * 2**25)
