"""What a model is, by its configuration alone: the numbers that throughput and MFU are made from."""

import pytest
import torch
from torch import nn

from autotune.candidate import Candidate
from autotune.specs import ModelSpec
from autotune.techniques.axis import Context
from autotune.techniques.check import refusal
from autotune.worker.build.inspect import describe
from autotune.worker.built_model import BuiltModel
from autotune.worker.model import build_model
from tests.reasons import reasons

WIDTH = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def facts_of(seq_len=16, **config):
    spec = ModelSpec(name="small", source="config", config=config)
    return describe(build_model(spec, seq_len, torch.device("meta")))


def test_a_dense_model_has_all_parameters_active():
    facts = facts_of(model_type="llama", architectures=["LlamaForCausalLM"], **WIDTH)
    assert facts.active_parameters == facts.parameters
    assert (facts.layers, facts.hidden, facts.blocks) == (2, 32, 2)


def test_what_computes_attention_is_what_the_model_has():
    assert facts_of(model_type="llama", architectures=["LlamaForCausalLM"], **WIDTH).attention == "sdpa"
    assert (
        facts_of(model_type="gptj", n_embd=32, n_head=4, n_layer=1, vocab_size=64, rotary_dim=4).attention
        == "eager"
    )
    mamba = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    assert facts_of(model_type="mamba", **mamba).attention == "eager"  # it has none, which is called so


def test_tied_weights_are_counted_once():
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **WIDTH}
    untied = facts_of(**config, tie_word_embeddings=False)
    tied = facts_of(**config, tie_word_embeddings=True)
    assert untied.parameters - tied.parameters == 100 * 32


@pytest.mark.parametrize(
    ("model_type", "architecture", "experts"),
    [
        ("mixtral", "MixtralForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
        (
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 8},
        ),
    ],
)
def test_a_mixture_of_experts_has_the_chosen_experts_active(model_type, architecture, experts):
    facts = facts_of(model_type=model_type, architectures=[architecture], **WIDTH, **experts)
    expert = 3 * 32 * 64  # gate, up and down projection
    assert facts.parameters - facts.active_parameters == 2 * (8 - 2) * expert


def test_an_encoder_and_a_decoder_count_both_ways():
    facts = facts_of(
        model_type="t5", architectures=["T5ForConditionalGeneration"], d_model=32, d_kv=8, d_ff=64, num_layers=2,
        num_decoder_layers=3, num_heads=4, vocab_size=100, decoder_start_token_id=0,
    )  # fmt: skip
    assert (facts.layers, facts.hidden, facts.task) == (5, 32, "seq2seq-lm")


def test_an_image_counts_its_patches_as_tokens():
    facts = facts_of(
        model_type="vit", architectures=["ViTForImageClassification"], hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
    )  # fmt: skip
    assert facts.tokens_per_sample == 17
    assert (facts.layers, facts.hidden) == (2, 32)


def test_what_tensor_parallelism_can_cut_is_known_before_any_probe():
    llama = facts_of(model_type="llama", architectures=["LlamaForCausalLM"], **WIDTH)
    four = Candidate(tensor_parallel=4)
    assert refusal(Candidate(tensor_parallel=2), Context(model=llama)) is None
    assert (
        refusal(four, Context(model=llama))
        == "4 ranks of tensor parallelism do not divide num_key_value_heads (2)"
    )
    gpt2 = facts_of(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=32, n_layer=2, n_head=4)
    assert "ships no plan for tensor parallelism with GPT2LMHeadModel" in refusal(four, Context(model=gpt2))
    mixtral = facts_of(model_type="mixtral", architectures=["MixtralForCausalLM"], **WIDTH)
    assert "the style moe_tp_experts, packed_colwise" in refusal(four, Context(model=mixtral))
    assert refusal(Candidate(), Context(model=gpt2)) is None


@pytest.mark.parametrize(("rate", "refuses"), [(0.1, True), (0.0, False)])
def test_ranks_that_skip_layers_by_chance_share_no_layer(rate, refuses):
    facts = facts_of(
        model_type="opt", architectures=["OPTForCausalLM"], hidden_size=32, num_hidden_layers=2, ffn_dim=64,
        num_attention_heads=4, vocab_size=64, word_embed_proj_dim=32, layerdrop=rate,
    )  # fmt: skip
    two = Context(model=facts, world_size=2)
    for candidate in (Candidate(sharding="fsdp2"), Candidate(sharding="zero2"),
                      Candidate(sharding="zero1", engine="deepspeed")):  # fmt: skip
        assert (("sharding", "context") in reasons(candidate, two)) is refuses
    for sharding in ("ddp", "zero1"):
        assert reasons(Candidate(sharding=sharding), two) == []
    assert refusal(Candidate(offload="full"), Context(model=facts, world_size=1)) is None


def test_pinned_memory_of_each_tensor_is_a_power_of_two():
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **WIDTH}
    untied, tied = (facts_of(**config, tie_word_embeddings=tied) for tied in (False, True))
    assert untied.pinned_parameters - tied.pinned_parameters == 4096  # of 100 x 32
    assert tied.parameters < tied.pinned_parameters < 2 * tied.parameters


@pytest.mark.parametrize(
    ("model_type", "architecture", "more", "chunked"),
    [
        ("llama", "LlamaForCausalLM", {}, True),
        ("bert", "BertForMaskedLM", {}, False),
        ("vit", "ViTForImageClassification", {"image_size": 16, "patch_size": 4}, False),
    ],
)
def test_what_a_models_task_rules_out_needs_no_trace_and_no_probe(model_type, architecture, more, chunked):
    facts = facts_of(model_type=model_type, architectures=[architecture], **{**WIDTH, **more})
    context = Context(model=facts)
    assert reasons(Candidate(loss="full"), context) == []
    assert reasons(Candidate(loss="chunked"), context) == ([] if chunked else [("loss", "context")])


def test_what_is_done_to_blocks_needs_one():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))
    without = Context(model=describe(BuiltModel(model, "custom", 16)))
    assert reasons(Candidate(), without) == []
    assert reasons(Candidate(compile="regional"), without) == [("compile", "context")]
    assert reasons(Candidate(checkpointing="full"), without) == [("checkpointing", "context")]
    blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(3)))
    found = Context(model=describe(BuiltModel(nn.ModuleDict({"layers": blocks}), "custom", 16), "Sequential"))
    for techniques in ({"compile": "regional"}, {"checkpointing": "full"}):
        assert reasons(Candidate(**techniques), found) == []
