"""Tiny configurations of every model family that has presets: two layers, small enough for a test."""

from __future__ import annotations

from typing import Any

POSITIONS = 128

_PLAIN = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 512, "max_position_embeddings": POSITIONS, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
_LLAMA = {**_PLAIN, "num_key_value_heads": 2}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4,
        "n_positions": POSITIONS, "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 0,
    },
    "llama": {**_LLAMA, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "mistral": {**_LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "mixtral": {
        **_LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2": {**_LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {**_LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "gemma2": {**_LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16},
    "gpt_neox": {**_PLAIN, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]},
    "opt": {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 512, "max_position_embeddings": POSITIONS,
        "word_embed_proj_dim": 64,
    },
    "bert": {**_PLAIN, "model_type": "bert", "architectures": ["BertForMaskedLM"]},
    "vit": {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32,
        "patch_size": 8, "id2label": {str(label): f"class {label}" for label in range(10)},
    },
    "t5": {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16,
        "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "vocab_size": 512,
    },
}  # fmt: skip
"""By transformers' model type; each as a preset or a config.json holds it."""
