"""Print as JSON what transformers builds of every preset on the meta device: parameters, blocks, longest input."""

import json
from pathlib import Path

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from autotune.models.catalog import list_presets
from autotune.models.resolve import resolve
from autotune.worker.blocks import find_blocks
from autotune.worker.model import build_model

found = {}
for preset in list_presets():
    spec = resolve(preset.name, base=Path())
    seq_len = 8 if preset.family == "ViT" else preset.longest
    built = build_model(spec, seq_len, torch.device("meta"))
    blocks = find_blocks(built.model)
    found[preset.name] = {
        "parameters": sum(parameter.numel() for parameter in built.model.parameters()),
        "class": type(built.model).__name__,
        "tokens": built.tokens_per_sample,
        "blocks": len(blocks.modules),
        "marked": all(isinstance(block, GradientCheckpointingLayer) for block in blocks.modules),
        "all": sum(isinstance(module, GradientCheckpointingLayer) for module in built.model.modules()),
    }
print(json.dumps(found))
