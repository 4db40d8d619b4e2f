"""Writes what `litgpt finetune_full` names, beside what inputs.py wrote: a checkpoint of its own kind, and rows."""

import json
import pathlib
import shutil
import sys

import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import save_config

SIZE, LENGTH, ROWS = 1024, 256, 128
folder = pathlib.Path(sys.argv[1])
checkpoint = folder / "checkpoint"
checkpoint.mkdir()
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(folder / "model" / name, checkpoint)
config = Config(
    name="tiny", block_size=LENGTH, padded_vocab_size=SIZE, n_layer=2, n_head=2, n_embd=16, intermediate_size=16384,
    norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", bias=False,
)  # fmt: skip
save_config(config, checkpoint)
torch.save(GPT(config).state_dict(), checkpoint / "lit_model.pth")
numbers = [[str(3 + (row + place) % (SIZE - 3)) for place in range(LENGTH)] for row in range(ROWS)]
rows = [{"instruction": " ".join(row[:8]), "output": " ".join(row)} for row in numbers]
(folder / "rows.json").write_text(json.dumps(rows))
