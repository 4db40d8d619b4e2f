"""Fine-tunes as many scripts do: transformers' Trainer, with all of its arguments on the command line."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        row = torch.full((256,), index % 8192)
        return {"input_ids": row, "labels": row}


(given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(given.seed)
config = GPT2Config(vocab_size=32768, n_embd=16, n_layer=2, n_head=2, n_positions=256)
trainer = Trainer(model=GPT2LMHeadModel(config), args=given, train_dataset=Rows(), eval_dataset=Rows())
trainer.train()
trainer.save_model()
