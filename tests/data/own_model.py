"""A user's own model: a small residual network over tokens, with its blocks as plain attributes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 32


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))


class Network(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.first = ResidualBlock(width)
        self.second = ResidualBlock(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.second(self.first(self.embed(tokens))))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())}


def make_batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
    tokens = torch.randint(VOCABULARY, (micro_batch, seq_len + 1))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def build() -> tuple[nn.Module, object]:
    return Network(), make_batch


def build_alone() -> nn.Module:
    """Break the contract: no batch maker."""
    return Network()


def build_half() -> tuple[nn.Module, object]:
    """Break the contract: parameters are not fp32."""
    return Network().bfloat16(), make_batch


def build_placed() -> tuple[nn.Module, object]:
    """Break the contract: accelerate has spread the model over devices."""
    model = Network()
    model.hf_device_map = {"": 0}
    return model, make_batch


def build_with_bad_batch() -> tuple[nn.Module, object]:
    """Break the contract: a list is no batch."""
    return Network(), lambda micro_batch, seq_len: [micro_batch, seq_len]


def build_without_loss() -> tuple[nn.Module, object]:
    """Break the contract: the forward returns logits."""

    class Headless(Network):
        def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
            return self.head(self.embed(tokens))

    return Headless(), make_batch


def build_with_bug() -> tuple[nn.Module, object]:
    raise ZeroDivisionError("a bug of the user's own")


class Texts:
    """A map-style dataset of 40 samples, each with a draw of its own, as an augmentation has."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        length = 8 + (32 if index == 30 else index % 5)
        tokens = torch.full((length + 1,), index % VOCABULARY)
        tokens[0] = int(torch.randint(VOCABULARY, ()))
        return {"tokens": tokens[:-1], "targets": tokens[1:]}


def pad(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {
        name: nn.utils.rnn.pad_sequence([sample[name] for sample in samples], batch_first=True)
        for name in samples[0]
    }


def build_with_dataset() -> tuple[nn.Module, object, object]:
    return Network(), Texts(), pad


def build_with_one_row() -> tuple[nn.Module, object]:
    """Break the contract: whatever is asked for, one row is made."""
    return Network(), lambda micro_batch, seq_len: make_batch(1, seq_len)


def build_with_one_row_of_samples() -> tuple[nn.Module, object, object]:
    """Break the contract: all samples but the first are dropped."""
    return Network(), Texts(), lambda samples: pad(samples[:1])


def build_for_single_samples() -> tuple[nn.Module, object, object]:
    """Break the contract: a collate function that knows batches of one alone."""

    def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        (sample,) = samples
        return pad([sample])

    return Network(), Texts(), collate


def build_for_one_length() -> tuple[nn.Module, object]:
    """A model that knows rows of 16 tokens alone."""

    class Fixed(Network):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(16, 32))

        def forward(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
            logits = self.head(self.second(self.first(self.embed(tokens) + self.positions)))
            return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())}

    return Fixed(), make_batch


def build_hungry_for_short_rows() -> tuple[nn.Module, object]:
    """A model that asks for 4 PiB as soon as rows are shorter than 16 tokens."""

    class Hungry(Network):
        def forward(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
            if tokens.shape[1] < 16:
                torch.empty(2**50)
            return super().forward(tokens, targets)

    return Hungry(), make_batch


def build_with_sounds() -> tuple[nn.Module, object]:
    """Batches without tokens, which know no length."""

    class Sounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1)

        def forward(self, sound: Tensor) -> Tensor:
            return self.linear(sound).square().mean()

    return Sounds(), lambda micro_batch, seq_len: {"sound": torch.ones(micro_batch, 40, 8)}
