"""The closed form against arithmetic that others published. GB are 10^9 bytes, DeepSpeed's are 2^30."""

import pytest

from autotune.memory.closed_form import (
    Architecture,
    Setup,
    activations,
    deepspeed,
    estimate,
    layer_activations,
    lora_parameters,
    quantized_bytes,
    state_bytes,
    states,
)  # fmt: skip
from autotune.units import GIB

GB = 1e9

MIXTRAL = Architecture(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=32000, experts=8,
    experts_per_token=2,
)  # fmt: skip
LLAMA_8B = Architecture(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocab=128256
)
GPT3 = Architecture(
    layers=96,
    hidden=12288,
    heads=96,
    kv_heads=96,
    head_dim=128,
    intermediate=4 * 12288,
    vocab=51200,
    gated=False,
)


def test_seven_billion_parameters_in_fp32_with_adam_are_112_gb():
    whole = states(7e9, "fp32")
    assert [part / GB for part in whole] == [28, 28, 56, 0]
    assert whole.total == 112 * GB
    assert states(7e9, "fp32", sharding="fsdp2", world=8).total == 14 * GB


def test_two_billion_parameters_in_bf16_keep_moments_and_a_master_copy_in_float32():
    assert [part / GB for part in states(2e9, "bf16")] == [4, 4, 16, 8]
    assert [part / GB for part in states(2e9, "autocast")] == [8, 8, 16, 0]


def test_zero_shares_out_what_figure_1_of_the_paper_says():
    # 7.5e9 parameters on 64 devices: 120, 31.4, 16.6 and 1.9 GB
    shares = [
        states(7.5e9, "fp16", "adamw", stage, 64).total / GB for stage in ("ddp", "zero1", "zero2", "fsdp2")
    ]
    assert shares == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_hybrid_sharding_shares_out_inside_a_node():
    hybrid = states(7.5e9, "fp32", sharding="hsdp", world=64, nodes=8)
    assert hybrid == states(7.5e9, "fp32", sharding="fsdp2", world=8)
    setup = Setup(seq_len=128, sharding="hsdp", world=64, nodes=8)
    assert estimate(LLAMA_8B, setup) == estimate(LLAMA_8B, Setup(seq_len=128, sharding="fsdp2", world=8))


def test_from_8_to_128_devices_fully_sharded_llama_gives_back_14_gib():
    parameters = LLAMA_8B.parameters()
    assert parameters == pytest.approx(8.03e9, rel=1e-3)
    drop = states(parameters, "fp32", sharding="fsdp2", world=8).total
    drop -= states(parameters, "fp32", sharding="fsdp2", world=128).total
    assert drop / GIB == pytest.approx(14.0, abs=0.05)


def test_eight_ranks_that_share_a_layers_matrices_divide_what_lies_between_them():
    # Korthikanti, section 4.2.1: s b h (10 + 24 / t + 5 a s / (h t)), with dropout and 16 bits.
    setup = Setup(seq_len=2048, attention="eager", dropout=True, tensor_parallel=8)
    tokens_wide = 2048 * 12288
    expected = tokens_wide * (10 + 24 / 8 + 5 * 96 * 2048 / (12288 * 8))
    assert layer_activations(GPT3, setup) == pytest.approx(expected)
    alone, shared = (
        estimate(LLAMA_8B, Setup(seq_len=1024, tensor_parallel=ranks)).parameters for ranks in (1, 8)
    )
    norms = 65 * 4096
    assert shared == pytest.approx(2 * (norms + (alone / 2 - norms) / 8))


def test_the_experts_of_mixtral():
    expert = MIXTRAL.expert_parameters()
    assert 2 * expert / 1e6 == pytest.approx(352, abs=0.5)
    assert 2 * expert * 8 / GB == pytest.approx(2.82, abs=0.005)
    assert 2 * expert * 8 * 32 / GB == pytest.approx(90, abs=0.5)
    assert MIXTRAL.parameters() == pytest.approx(46.7e9, rel=1e-3)


def test_training_two_experts_and_the_router_in_six_layers_of_mixtral():
    trained = 6 * (2 * MIXTRAL.expert_parameters() + 8 * 4096)
    parts = [part / GB for part in states(trained, "bf16")]
    assert parts == pytest.approx([4.23, 4.23, 16.9, 8.46], abs=0.02)
    assert sum(parts) == pytest.approx(33.8, abs=0.05)


def test_adapters_of_rank_16_on_every_expert_over_a_4_bit_base():
    matrices = ((4096, 14336), (14336, 4096), (4096, 14336))
    trained = lora_parameters(16, matrices, copies=8 * 32)
    assert trained / 1e6 == pytest.approx(226.6, rel=1e-3)
    parts = states(trained, "bf16")
    sums = [parts.parameters / GB, parts.gradients / GB, (parts.optimizer_state + parts.master_weights) / GB]
    assert sums == pytest.approx([0.45, 0.45, 2.72], abs=0.006)
    assert sum(sums) == pytest.approx(3.6, abs=0.05)


def test_four_bit_weights_take_the_bits_that_qlora_states():
    assert quantized_bytes(64e6) * 8 / 64e6 == pytest.approx(4.127, abs=0.001)
    assert quantized_bytes(64e6, double=False) * 8 / 64e6 == pytest.approx(4.5)


def test_deepspeeds_documented_vectors_for_t5_3b_on_8_devices():
    parameters, layer = 2851e6, 32e6

    def on_device(stage, **options):
        return deepspeed(parameters, stage, 8, largest_layer=layer, **options).device / GIB

    assert on_device(2) == pytest.approx(15.93, abs=0.01)
    assert on_device(2, offload_optimizer=True) == pytest.approx(5.31, abs=0.01)
    assert on_device(3) == pytest.approx(6.10, abs=0.01)
    assert on_device(3, offload_optimizer=True) == pytest.approx(0.79, abs=0.01)
    assert on_device(3, offload_optimizer=True, offload_parameters=True) == pytest.approx(0.12, abs=0.005)
    host = deepspeed(parameters, 3, 8, offload_optimizer=True, offload_parameters=True).host / GIB
    assert host == pytest.approx(71.71, abs=0.05)
    host = deepspeed(parameters, 3, 8, offload_optimizer=True, zero_init=False).host / GIB
    assert host == pytest.approx(127.48, abs=0.05)


def test_activations_of_a_layer_are_korthikantis():
    setup = Setup(seq_len=2048, micro_batch=3, dropout=True, attention="eager")
    tokens_width = 2048 * 3 * GPT3.hidden
    whole = tokens_width * (34 + 5 * GPT3.heads * 2048 / GPT3.hidden)
    assert layer_activations(GPT3, setup) == pytest.approx(whole)
    selective = setup.model_copy(update={"checkpointing": "selective"})
    assert layer_activations(GPT3, selective) == pytest.approx(tokens_width * 34)
    full = setup.model_copy(update={"checkpointing": "full"})
    assert activations(GPT3, full) == pytest.approx(GPT3.layers * 2 * tokens_width + whole)


def test_eager_attention_grows_with_the_square_of_the_sequence_and_flash_does_not():
    def kept(seq_len, attention):
        return layer_activations(LLAMA_8B, Setup(seq_len=seq_len, attention=attention))

    assert kept(8192, "flash") == 2 * kept(4096, "flash")
    assert kept(8192, "eager") > 3 * kept(4096, "eager")


def test_optimizers_rank_as_their_states_do():
    per_parameter = [
        state_bytes("sgd"), state_bytes("adafactor", 4096, 4096), state_bytes("adamw-8bit"), state_bytes("momentum"),
        state_bytes("adamw"),
    ]  # fmt: skip
    assert per_parameter == sorted(per_parameter)
    assert per_parameter[1] == pytest.approx(8 / 4096)
    assert per_parameter[2] == pytest.approx(2.03, abs=0.01)


def test_offload_moves_bytes_to_the_host_and_loses_none():
    plain, moved, full = (
        estimate(LLAMA_8B, Setup(seq_len=4096, offload=offload)) for offload in ("none", "optimizer", "full")
    )
    assert plain.host == 0
    assert plain.device - moved.device == pytest.approx(moved.host)
    assert moved.host == plain.optimizer_state + plain.master_weights
    assert (full.parameters, full.gradients, full.optimizer_state) == (0, 0, 0)
    assert full.host == sum(plain[:4])
    assert full.temporary == LLAMA_8B.layer_parameters() * 4


def test_foreach_adamw_peaks_in_its_step_where_activations_are_smaller_than_a_copy_of_the_parameters():
    fused, foreach = (
        estimate(LLAMA_8B, Setup(seq_len=512, optimizer_kernel=kernel)) for kernel in ("fused", "foreach")
    )
    assert (foreach.activations, foreach.logits) == (0, 0)
    assert foreach.temporary == 4 * LLAMA_8B.parameters()
    assert foreach.device > fused.device
    long = Setup(seq_len=4096, micro_batch=64)
    assert estimate(LLAMA_8B, long) == estimate(
        LLAMA_8B, long.model_copy(update={"optimizer_kernel": "foreach"})
    )


def test_frozen_weights_have_no_gradients_and_no_state():
    adapters = lora_parameters(16, ((4096, 4096), (4096, 1024)), copies=32)
    tuned = estimate(LLAMA_8B, Setup(seq_len=512, trained=adapters, frozen_bits=4))
    assert tuned.gradients == 2 * adapters
    assert tuned.optimizer_state == 8 * adapters
    frozen = LLAMA_8B.parameters() - adapters
    assert tuned.parameters == pytest.approx(quantized_bytes(frozen) + 2 * adapters)


def test_a_fused_loss_keeps_the_logits_and_their_gradient_in_16_bits():
    setup = Setup(seq_len=4096, micro_batch=2)
    tokens = 2 * 4096 * LLAMA_8B.vocab
    assert estimate(LLAMA_8B, setup).logits == tokens * 10
    assert estimate(LLAMA_8B, setup.model_copy(update={"fused_loss": True})).logits == tokens * 4
