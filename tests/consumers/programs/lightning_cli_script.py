"""A module and a data module for Lightning's own command line."""

import lightning
import torch
from lightning.pytorch.cli import LightningCLI


class Net(lightning.LightningModule):
    def __init__(self, width: int = 16384):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 16)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.GELU(), torch.nn.Linear(width, 16))
            for _ in range(4)
        )
        self.head = torch.nn.Linear(16, 64)

    def training_step(self, batch, index):
        h = self.embedding(batch)
        for block in self.blocks:
            h = h + block(h)
        return torch.nn.functional.cross_entropy(self.head(h).flatten(0, 1), batch.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Rows(lightning.LightningDataModule):
    def __init__(self, batch_size: int = 8):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randint(0, 64, (8192, 256)), batch_size=self.batch_size)


LightningCLI(Net, Rows)
