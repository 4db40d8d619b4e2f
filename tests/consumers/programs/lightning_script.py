"""A module and a trainer of Lightning, with flags of its own."""

import argparse

import lightning
import torch

options = argparse.ArgumentParser()
options.add_argument("--batch-size", type=int, default=8)
options.add_argument("--accumulate", type=int, default=1)
options.add_argument("--precision", default="32-true")
options.add_argument("--root", default=".")
given = options.parse_args()
lightning.seed_everything(0)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 16)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 16384), torch.nn.GELU(), torch.nn.Linear(16384, 16))
            for _ in range(4)
        )
        self.head = torch.nn.Linear(16, 64)

    def training_step(self, batch, index):
        h = self.embedding(batch)
        for block in self.blocks:
            h = h + block(h)
        loss = torch.nn.functional.cross_entropy(self.head(h).flatten(0, 1), batch.flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


rows = torch.utils.data.DataLoader(torch.randint(0, 64, (8192, 256)), batch_size=given.batch_size)
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=100, accumulate_grad_batches=given.accumulate, precision=given.precision,
    default_root_dir=given.root, enable_progress_bar=False, log_every_n_steps=1,
)  # fmt: skip
trainer.fit(Net(), rows)
