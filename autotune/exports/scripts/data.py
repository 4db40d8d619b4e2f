"""Example data: replace it with yours. Its rows are as long as in the measurement, and hold as much.

Longer samples than these need more memory than was proven; shorter ones need less.
"""

import json

import torch
from model import FOLDER, SETTINGS
from torch.utils.data import Dataset

SYMBOLS = 8
ROWS = json.loads((FOLDER / "rows.json").read_text()) if SETTINGS["sequences"] != "full" else []


class ExampleData(Dataset):
    """`count` samples that any model learns within a few steps: the arguments of its forward, without batch axis."""

    def __init__(self, config, count: int) -> None:
        self.config = config
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if SETTINGS["task"] == "image-classification":
            size = self.config.image_size
            height, width = (size, size) if isinstance(size, int) else size
            label = index % 2
            pixels = torch.full((self.config.num_channels, height, width), float(label))
            return {"pixel_values": pixels, "labels": torch.tensor(label)}
        if SETTINGS["sequences"] != "full":
            return self.row(index)
        vocabulary = self.config.get_text_config().vocab_size
        tokens = vocabulary - 1 - (torch.arange(SETTINGS["seq_len"]) + index) % min(SYMBOLS, vocabulary)
        labels = tokens.clone()
        if SETTINGS["task"] == "masked-lm":
            chosen = torch.arange(len(tokens)) % 7 == 0
            tokens = tokens.masked_fill(chosen, 0)
            labels = labels.masked_fill(~chosen, -100)
        return {"input_ids": tokens, "labels": labels}

    def row(self, index: int) -> dict[str, torch.Tensor]:
        """One document and padding, or several and what is left; none has a target for its first token."""
        width, packed = SETTINGS["seq_len"], SETTINGS["sequences"] == "packed"
        documents = ROWS[index % len(ROWS)]
        held = sum(documents)
        parts = [*documents, width - held] if packed else [width]
        positions = torch.cat([torch.arange(part) for part in parts])
        vocabulary = self.config.get_text_config().vocab_size
        tokens = vocabulary - 1 - (positions + index) % min(SYMBOLS, vocabulary)
        real = torch.arange(width) < held
        sample = {"input_ids": tokens, "labels": tokens.masked_fill(~real | (positions == 0), -100)}
        # Positions that begin anew tell transformers where a document ends, as long as there is no attention mask.
        return {**sample, "position_ids": positions} if packed else {**sample, "attention_mask": real.long()}
