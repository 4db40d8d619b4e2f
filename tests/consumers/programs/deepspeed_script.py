import argparse

import deepspeed
import torch

options = deepspeed.add_config_arguments(argparse.ArgumentParser())
options.add_argument("--local_rank", type=int, default=0)
given = options.parse_args()
torch.manual_seed(0)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing to compile: gloo's own collectives
torch.distributed.init_process_group("gloo")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 16)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 16))
            for _ in range(4)
        )

    def forward(self, x):
        h = self.embedding(x)
        for block in self.blocks:
            h = h + block(h)
        return h.square().mean()


net = Net()
engine, *_ = deepspeed.initialize(
    args=given, model=net, optimizer=torch.optim.AdamW(net.parameters()), dist_init_required=False
)
while True:
    loss = engine(torch.randint(0, 64, (engine.train_micro_batch_size_per_gpu(), 256)))
    engine.backward(loss)
    engine.step()
