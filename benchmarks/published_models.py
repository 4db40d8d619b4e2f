"""The models of published runs that are not among autotune's presets, as the publishers' code computes them.

What a model keeps for its backward pass depends on how it is written, so these follow the publishers' operators one by
one where transformers' model of that name is written otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, BertConfig, BertForSequenceClassification
from transformers.masking_utils import AttentionMaskInterface, eager_mask

Batch = Callable[[int, int], dict[str, Tensor]]


class _SoftmaxOfTorch110(torch.autograd.Function):
    """Softmax before torch 1.11: it keeps its input for the backward pass beside its output.

    pytorch issue 64000; only the output was ever needed.
    """

    @staticmethod
    def forward(context: Any, scores: Tensor) -> Tensor:
        result = scores.softmax(dim=-1)
        context.save_for_backward(scores, result)
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        scores, result = context.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, result, -1, scores.dtype)


def _attention_of_2022(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1])
    # transformers 4.15 adds a mask in every case, of zeros where nothing is padding.
    scores = scores + torch.zeros(query.shape[0], 1, 1, key.shape[2], device=query.device)
    weights = functional.dropout(_SoftmaxOfTorch110.apply(scores), options["dropout"], module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


AttentionInterface.register("of_2022", _attention_of_2022)
AttentionMaskInterface.register("of_2022", eager_mask)


def bert_large() -> tuple[nn.Module, Batch]:
    """BERT large with a classifier, as Hugging Face's guide to one GPU trained it in January 2022 (torch 1.10)."""
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=2,
        attn_implementation="of_2022",
    )  # fmt: skip
    model = BertForSequenceClassification(config)

    def batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
        return {
            "input_ids": torch.full((micro_batch, seq_len), 100),
            "labels": torch.zeros(micro_batch, dtype=torch.long),
        }

    return model, batch
