"""A function of the user's own that builds a model which autotune could build by itself, to compare the two."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.data.families import FAMILIES

WIDE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
"""Changes to the tiny Llama that make its blocks most of it, and it more than a step's activations."""


def make_batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
    tokens = torch.randint(512, (micro_batch, seq_len))
    return {"input_ids": tokens, "labels": tokens}


def build() -> tuple[nn.Module, object]:
    values = {**FAMILIES["llama"], **WIDE, "use_cache": False}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32), make_batch
