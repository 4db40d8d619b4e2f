"""The models of published runs that are not among autotune's presets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification


def bert_large() -> tuple[nn.Module, object]:
    """BERT large with a classifier and eager attention, as Hugging Face's guide to one GPU trains it."""
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=2,
        attn_implementation="eager",
    )  # fmt: skip
    model = BertForSequenceClassification(config)

    def batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
        return {
            "input_ids": torch.full((micro_batch, seq_len), 100),
            "labels": torch.zeros(micro_batch, dtype=torch.long),
        }

    return model, batch
