"""Training programs as users write them, for probes that are real. None of them knows of autotune."""

HEAD = """
import argparse, os, torch
from torch.utils.checkpoint import checkpoint

options = argparse.ArgumentParser()
options.add_argument("--bs", type=int, default=2)
options.add_argument("--accum", type=int, default=1)
options.add_argument("--gc", action="store_true")
options.add_argument("--out", default="out")
options.add_argument("--steps", type=int, default=10**6)
given = options.parse_args()
torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 16)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 16)) for _ in range(4)
        )

    def forward(self, x):
        h = self.embedding(x)
        for block in self.blocks:
            h = h + (checkpoint(block, h, use_reentrant=False) if given.gc else block(h))
        return h.square().mean()


model = Net()
optimizer = torch.optim.AdamW(model.parameters())
batch = lambda size: torch.randint(0, 64, (size, 256))
"""
LOOP = """
for step in range(given.steps):
    for _ in range(given.accum):
        (model(batch(given.bs)) / given.accum).backward()
    optimizer.step()
    optimizer.zero_grad()
open(os.path.join(given.out, "checkpoint"), "w").write("saved")
"""
NANO = HEAD + LOOP
IGNORES = HEAD + LOOP.replace("batch(given.bs)", "batch(8)")
NEVER_STEPS = HEAD + LOOP.replace("    optimizer.step()\n", "")
HANGS = HEAD + LOOP + "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
SWALLOWS = (
    HEAD
    + """
size = given.bs
while True:
    try:
        for _ in range(given.accum):
            (model(batch(size)) / given.accum).backward()
    except RuntimeError:
        size = max(1, size // 2)
        model.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
"""
)
LOADS = (
    HEAD
    + """
class Rows(torch.utils.data.Dataset):
    __len__ = lambda self: 10**6
    __getitem__ = lambda self, index: torch.full((256,), index % 64)

rows = iter(torch.utils.data.DataLoader(Rows(), batch_size=given.bs, num_workers=2))
while True:
    for _ in range(given.accum):
        (model(next(rows)) / given.accum).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
BY_HAND = (
    HEAD
    + """
import autotune
while True:
    model(batch(given.bs)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None
    autotune.report_step()
"""
)
DDP = (
    HEAD.replace(
        "model = Net()",
        """torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Net())""",
    )
    + LOOP
)
HF_TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    __len__ = lambda self: 10**6
    __getitem__ = lambda self, index: {name: torch.full((64,), index % 50) for name in ("input_ids", "labels")}


(given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64)
Trainer(model=GPT2LMHeadModel(config), args=given, train_dataset=Rows()).train()
"""
OF_A_CONFIGURATION = """
import argparse, json, torch
from transformers import GPT2Config, GPT2LMHeadModel

options = argparse.ArgumentParser()
options.add_argument("config")
options.add_argument("--bs", type=int)
options.add_argument("--accum", type=int)
given = options.parse_args()
model = GPT2LMHeadModel(GPT2Config(**json.load(open(given.config))))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    for _ in range(given.accum):
        rows = torch.randint(0, model.config.vocab_size, (given.bs, 256))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=rows, labels=rows).loss
        (loss / given.accum).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
