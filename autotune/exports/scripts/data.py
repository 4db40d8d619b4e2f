"""Example data: replace it with yours. Every sample is full length, as in the measurement.

Longer samples than these need more memory than was proven; shorter ones need less.
"""

import torch
from model import SETTINGS
from torch.utils.data import Dataset

SYMBOLS = 8


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
        vocabulary = self.config.get_text_config().vocab_size
        tokens = vocabulary - 1 - (torch.arange(SETTINGS["seq_len"]) + index) % min(SYMBOLS, vocabulary)
        labels = tokens.clone()
        if SETTINGS["task"] == "masked-lm":
            chosen = torch.arange(len(tokens)) % 7 == 0
            tokens = tokens.masked_fill(chosen, 0)
            labels = labels.masked_fill(~chosen, -100)
        return {"input_ids": tokens, "labels": labels}
