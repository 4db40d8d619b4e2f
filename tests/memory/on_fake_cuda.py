"""The stand-in for CUDA; `test_fake_cuda.py` runs these in a process of their own."""

import sys
from pathlib import Path

import pytest
import torch
from transformers.models.llama import modeling_llama

from autotune.candidate import choices
from autotune.memory.reserved import allocator_usage
from autotune.specs import ModelSpec
from autotune.timeline.timeline import Timeline
from autotune.worker.techniques import activation_offload
from autotune.worker.techniques.offload_store import BUFFER, BUFFERS
from autotune.worker.tracing.fakes.cuda import fake_cuda
from autotune.worker.tracing.fakes.triton import MULTIPROCESSORS, _LargestChunks
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.tracing.trace import trace
from benchmarks import coverage
from tests.data.own_family import WIDE
from tests.data.requests import family
from tests.memory.counted import request as traced
from tests.memory.test_sharding import check_gathered, check_hybrid, check_states, held
from tests.reasons import refused


def test_attention_on_cuda_grows_with_the_sequence_and_not_with_its_square():
    def growth(device, seq_len):
        timeline = trace(traced("tiny-gpt2", device=device, seq_len=seq_len))
        return timeline.allocated(24) - timeline.allocated(8)

    assert growth("cuda:0", 256) == pytest.approx(2 * growth("cuda:0", 128), rel=0.01)
    half, whole = (trace(traced(device="cuda:0", precision=name)) for name in ("bf16", "fp32"))
    assert half.device == "cuda"
    assert (half.attention_kernels, whole.attention_kernels) == (("flash",), ("memory-efficient",))
    assert Timeline.parse(half.dump()) == half


def test_flash_attention_is_traced_without_its_package_and_needs_no_mask_of_a_window():
    windowed = ModelSpec(
        name="windowed", source="config",
        config={
            "model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "sliding_window": 64,
        },
    )  # fmt: skip

    def timeline(attention, seq_len):
        asked = traced(device="cuda:0", precision="bf16", seq_len=seq_len, attention=attention)
        return trace(asked.model_copy(update={"model": windowed}))

    short, long = (timeline("flash_attention_2", seq_len) for seq_len in (256, 512))
    assert long.allocated(16) - long.allocated(8) == pytest.approx(
        2 * (short.allocated(16) - short.allocated(8)), rel=0.01
    )
    masked = timeline("sdpa", 512)
    assert masked.allocated(16) > long.allocated(16) + 16 * 512**2
    assert "flash_attn" not in sys.modules


@pytest.fixture
def liger(monkeypatch):
    """Provide stand-ins for liger-kernel and Triton, whose kernels cannot be launched."""
    assert modeling_llama.LlamaModel, "imported before, since torch would take the stand-in for Triton"
    for name in ("liger", "stand_in_for_triton"):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "data" / name))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in {"liger_kernel", "triton"}]:
        del sys.modules[name]


def test_kernels_of_triton_do_nothing_and_what_their_callers_allocate_counts(liger):
    plain, fused = (
        trace(traced("tiny-llama", device="cuda:0", precision="bf16", kernels=kernels))
        for kernels in ("torch", "liger")
    )
    assert fused.allocated(16) < plain.allocated(16)
    sums = [slot for slot in fused.micro.events if slot >= 0
            and (fused.slots.base[slot], fused.slots.slope[slot]) == (MULTIPROCESSORS * 64 * 4, 0)]  # fmt: skip
    assert len(sums) == 2 * 2 + 1, "one for each norm"
    moved = {
        operator.name: (operator.bytes, count)
        for phase in ("forward", "backward") for operator, count in fused.work.of(phase, 4)
    }  # fmt: skip
    states = 4 * 64 * 64 * 4
    assert moved["norm_forward"] == (2 * states + 64 * 4, 5)
    assert moved["norm_backward"] == (2 * states + 64 * 4 + MULTIPROCESSORS * 64 * 4, 5)
    from liger_kernel.ops import norm

    assert norm.torch is torch
    assert "cuda" in norm.backward.__code__.co_consts
    with pytest.raises(RuntimeError, match="no GPU"):
        norm.norm_forward[(1,)](None)


def test_chunks_of_logits_are_as_large_as_they_can_be_and_as_many_at_any_micro_batch():
    cdiv, rounded = _LargestChunks.cdiv, _LargestChunks.next_power_of_2
    for vocabulary, width in ((32_000, 4096), (128_256, 2048), (256, 256)):
        counts = set()
        for tokens in range(2048, 40_960, 1024):
            share = cdiv(tokens, cdiv(vocabulary, width))
            rows = min(rounded(share), tokens)
            counts.add(cdiv(tokens, rows))
            real = min(1 << (int(share) - 1).bit_length(), tokens)
            assert 0.98 * real <= rows <= 2.02 * real
        assert len(counts) == 1


def test_without_triton_the_extra_is_named(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "data" / "liger"))
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setitem(sys.modules, "triton.runtime", None)
    with refused("kernels", "package"):
        trace(traced("tiny-llama", device="cuda:0", precision="bf16", kernels="liger"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "liger_kernel"]:
        del sys.modules[name]


def test_cuda_usage_is_reserved_at_least_as_it_is_allocated():
    timeline = trace(traced("tiny-llama", device="cuda:0", precision="bf16"))
    for expandable in (False, True):
        usage = allocator_usage(timeline, 4, expandable_segments=expandable, blas_workspace=8_519_680)
        plain = allocator_usage(timeline, 4, expandable_segments=expandable)
        assert usage.reserved_peak >= usage.allocated_peak >= usage.requested_peak
        assert usage.allocated_peak >= plain.allocated_peak + 2 * 8_519_680 - (1 << 20)


def test_offloaded_state_crosses_the_host_link_both_ways():
    timeline = trace(traced(device="cuda:0", offload="optimizer", precision="bf16"))
    moved = {"upload": 0, "download": 0}
    for operator, count in timeline.work.of("optimizer", 4):
        if operator.kind in moved:
            moved[operator.kind] += operator.bytes * count
    state = 2 * 4 * timeline.facts["parameters"]
    assert moved == {"upload": state, "download": state}


@pytest.mark.parametrize("offload", ["optimizer", "gradients", "full"])
def test_what_rests_on_disk_takes_buffers_of_the_host_alone(offload):
    fields = {"device": "cuda:0", "offload": offload, "checkpointing": "full"}
    kept, to_host, to_disk = (
        trace(traced("tiny-llama", **{**fields, **more}))
        for more in ({"offload": "none"}, {}, {"offload_to": "disk"})
    )
    assert kept.allocated(2, place="disk") == to_host.allocated(2, place="disk") == 0
    assert to_disk.allocated(2) == pytest.approx(to_host.allocated(2), rel=0.01)
    each = {"optimizer": 8, "gradients": 12, "full": 16}[offload]
    held = each * to_disk.facts["parameters"]
    assert to_disk.allocated(2, place="disk") == pytest.approx(held, rel=0.01)
    if offload == "full":  # FSDP2 gathers from the files, and updates in them
        assert to_disk.allocated(2, place="host") < 0.5 * to_host.allocated(2, place="host")
    else:
        assert 0 <= to_disk.allocated(2, place="host") - BUFFERS * BUFFER < 4096


def test_each_rank_keeps_what_zero_says_on_cuda():
    check_states("cuda:0")
    check_hybrid("cuda:0")


def test_what_is_gathered_block_by_block_goes_away_again_on_cuda():
    check_gathered("cuda:0")


@pytest.mark.parametrize(("world_size", "sharding"), [(1, "none"), (8, "fsdp2")])
def test_full_offload_leaves_blocks_on_the_device_and_the_rest_on_the_host(world_size, sharding):
    fields = {"precision": "bf16", "offload": "full", "checkpointing": "full", "sharding": sharding}
    timeline = trace(
        traced("tiny-llama", device="cuda:0", **fields).model_copy(update={"world_size": world_size})
    )
    before_update = held(timeline, "optimizer")
    assert before_update["parameter"] == before_update["gradient"] == before_update["optimizer_state"] == 0
    states = 16 * timeline.facts["parameters"] / world_size
    assert timeline.peak(2, place="host").bytes >= states


@pytest.mark.parametrize("optimizer", choices("optimizer"))
def test_every_optimizer_is_traced_on_cuda(optimizer):
    timeline = trace(traced(device="cuda:0", optimizer=optimizer))
    state, parameters = (timeline.peak(8).breakdown[part] for part in ("optimizer_state", "parameter"))
    low, high = {
        "adamw": (2, 2.1), "adamw-8bit": (0.5, 0.7), "adafactor": (0, 0.2), "momentum": (1, 1), "sgd": (0, 0)
    }[optimizer]  # fmt: skip
    assert low * parameters <= state <= high * parameters


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_activations_go_to_the_host_and_come_back(checkpointing, monkeypatch):
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 10)
    fields = {"device": "cuda:0", "checkpointing": checkpointing}
    kept, moved = (trace(traced(activation_offload=on, **fields)) for on in (False, True))
    assert moved.exact is None
    on_device = [timeline.peak(32).breakdown["activation"] for timeline in (kept, moved)]
    assert on_device[1] < 0.5 * on_device[0]
    assert on_device[0] - on_device[1] <= 1.01 * moved.allocated(32, place="host")
    assert kept.allocated(32, place="host") < 0.1 * moved.allocated(32, place="host")


def of_own(function, **fields):
    folder = Path(__file__).parents[1] / "data"
    own = ModelSpec(name=f"own_autocast:{function}", source="function", path=str(folder))
    return traced(device="cuda:0", **fields).model_copy(update={"model": own})


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp.autocast")
def test_autocast_in_a_users_own_model_counts_as_the_candidates_does():
    plain, cast = (trace(of_own("plain", precision=name)).allocated(64) for name in ("fp32", "bf16"))
    assert cast < 0.9 * plain
    for function in ("by_name", "by_old_name", "by_device", "decorated", "in_fp16"):
        own = trace(of_own(function, precision="fp32"))
        assert own.allocated(64) == pytest.approx(cast, rel=0.01), function


def test_autocast_for_a_processor_says_why_it_cannot_be_traced_on_cuda():
    with refused("precision", "context", match=r"autocast.*cpu.*is_available.*device\.type"):
        trace(of_own("by_availability", precision="fp32"))


@pytest.mark.parametrize(
    "fields",
    [{"adapters": "lora"}, {"adapters": "qlora"}, {"adapters": "none"}],
    ids=lambda fields: fields["adapters"],
)
def test_a_users_function_takes_of_the_device_what_its_model_takes_by_name(fields):
    """It builds on the host, in fp32; what leaves for the device is quantized or cast before."""
    folder = Path(__file__).parents[1] / "data"
    own = ModelSpec(name="own_family:build", source="function", path=str(folder))
    precision = "bf16" if fields["adapters"] == "qlora" else "bf16-pure"
    timelines = [
        trace(
            traced(device="cuda:0", seq_len=8, precision=precision, **fields).model_copy(
                update={"model": model}
            )
        )
        for model in (own, family("llama", **WIDE))
    ]
    ours, named = (timeline.peak(1) for timeline in timelines)
    assert ours.phase != "build"
    assert ours.bytes == pytest.approx(named.bytes, rel=0.01)


def test_activations_in_several_operators_and_eager_attention_are_known_by_module():
    plain = trace(traced("tiny-gpt2", device="cuda:0", precision="bf16"))
    fused = family("gpt2", activation_function="gelu_pytorch_tanh")
    other = trace(traced(device="cuda:0", precision="bf16").model_copy(update={"model": fused}))
    assert set(plain.unfused.values()) == {"activation"}
    assert set(plain.unfused) <= set(plain.modules)
    assert not other.unfused
    spec = ModelSpec(name="mpt", source="config", config=coverage.small("mpt", shallow=True))
    eager = trace(traced(device="cuda:0", precision="bf16").model_copy(update={"model": spec}))
    assert "attention" in eager.unfused.values()
    assert eager.attention_kernels == ()


@pytest.fixture(scope="class")
def device():
    with fake_cuda() as device, StorageRecorder(device.type, {}):
        yield device


class TestCudaRules:
    """What autocast and the operators choose on the stand-in, as they do on CUDA."""

    def test_autocast_follows_the_lists_of_cuda(self, device):
        x, weight = torch.empty(4, 8, device=device), torch.nn.Parameter(torch.empty(8, 8, device=device))
        low = torch.empty(4, 8, device=device, dtype=torch.bfloat16)
        with torch.autocast(device.type, torch.bfloat16):
            assert torch.nn.functional.linear(x, weight).dtype == torch.bfloat16
            assert (x @ weight).dtype == torch.bfloat16
            assert low.softmax(-1).dtype == torch.float32
            assert low.pow(2).dtype == torch.float32
            assert low.sum().dtype == torch.float32
            # Also over what FSDP2 has cast to bf16: the fp32 copy of its input is kept for backward.
            normed = torch.nn.functional.layer_norm(low.clone().requires_grad_(), (8,))
            assert normed.dtype == normed.grad_fn._saved_input.dtype == torch.float32
            assert torch.nn.functional.gelu(low).dtype == torch.bfloat16
            assert torch.cat([low, x]).dtype == torch.float32
            assert (low + x).dtype == torch.float32
            assert torch.is_autocast_enabled()
            assert torch.get_autocast_gpu_dtype() == torch.bfloat16
        assert not torch.is_autocast_enabled()
        assert torch.nn.functional.linear(x, weight).dtype == torch.float32

    def test_autocast_casts_a_parameter_once_in_a_region(self, device):
        weight = torch.nn.Parameter(torch.empty(64, 64, device=device))
        x = torch.empty(2, 64, device=device)
        recorder = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        casts = []
        for _ in range(2):
            before = len(recorder.allocations.sizes)
            with torch.autocast(device.type, torch.bfloat16):
                torch.nn.functional.linear(x, weight)
                torch.nn.functional.linear(x, weight)
            casts.append(recorder.allocations.sizes[before:].count(64 * 64 * 2))
        assert casts == [1, 1]

    def test_dropout_keeps_a_mask_of_one_byte_an_element(self, device):
        x = torch.empty(64, 64, device=device, requires_grad=True)
        assert torch.nn.functional.dropout(x, 0.5).grad_fn.name() == "NativeDropoutBackward0"
        assert torch.nn.functional.dropout(x, 0.5, training=False) is x

    def test_attention_chooses_the_kernel_by_type_mask_and_head(self, device):
        def kernel(dtype=torch.bfloat16, head=64, mask=None, kv_heads=4, **options):
            query = torch.empty(2, 4, 32, head, device=device, dtype=dtype, requires_grad=True)
            key = torch.empty(2, kv_heads, 32, head, device=device, dtype=dtype, requires_grad=True)
            result = torch.nn.functional.scaled_dot_product_attention(query, key, key, mask, **options)
            assert result.shape == query.shape
            names, node = [], result.grad_fn
            while node is not None and len(names) < 4:
                names.append(node.name())
                node = node.next_functions[0][0] if node.next_functions else None
            return next((name for name in names if "Attention" in name), names[0])

        mask = torch.ones(32, 32, dtype=torch.bool, device=device)
        assert "Flash" in kernel(is_causal=True, dropout_p=0.1)
        assert "Flash" in kernel(head=60)  # padded to 64
        assert "Flash" in kernel(kv_heads=2, enable_gqa=True)
        assert "Efficient" in kernel(mask=mask)
        assert "Efficient" in kernel(dtype=torch.float32)
        assert "Attention" not in kernel(dtype=torch.float32, kv_heads=2, enable_gqa=True)


def test_a_parameter_that_its_class_makes_on_the_cpu_is_brought_to_the_device():
    """XLNet makes some by `torch.FloatTensor`; autocast casts what is on the device alone."""
    spec = ModelSpec(name="xlnet", source="config", config=coverage.small("xlnet", shallow=True))
    probe = traced(device="cuda:0", precision="bf16").model_copy(update={"model": spec})
    assert trace(probe).allocated(2) > 0


def test_ranks_that_share_a_model_keep_their_slices_on_the_device():
    """Built whole on the host, and cut from there: nothing but slices and norms is left on the device."""
    probe = traced("tiny-llama", device="cuda:0", precision="bf16", tensor_parallel=2)
    timeline = trace(probe.model_copy(update={"world_size": 2}))
    kept = held(timeline, "optimizer")
    half = timeline.facts["parameters"] / 2
    assert kept["parameter"] == pytest.approx(4 * half, rel=0.01)
    assert kept["gradient"] == pytest.approx(4 * half, rel=0.01)
    assert kept["optimizer_state"] == pytest.approx(8 * half, rel=0.01)
