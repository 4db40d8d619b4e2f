"""Two ranks under `Collectives`: what rank 0 saw, as JSON. python -m tests.data.collectives FOLDER"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from autotune.worker.measuring.gloo_collectives import Collectives

LATE = 0.3


def waiting(rank, store):
    if rank == 0:
        store.set("waits", "")
    else:
        store.wait(["waits"])  # however late that is on a busy machine, this is later
        time.sleep(LATE)
    dist.all_reduce(torch.ones(8))


def of_cpp():
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    return lambda: model(torch.ones(2, 8)).sum().backward()


def of_python():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for each in (*model, model):
        fully_shard(each, mesh=init_device_mesh("cpu", (2,)))
    return lambda: model(torch.ones(2, 8)).sum().backward()


def functional():
    sharded = distribute_tensor(torch.ones(8, 8), init_device_mesh("cpu", (2,)), [Shard(0)])

    def case():
        (sharded @ sharded.redistribute(placements=[Replicate()])).full_tensor()
        all_reduce(torch.ones(8), "sum", dist.group.WORLD) + 1  # the sum waits

    return case


def main(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    seen = {}
    cases = {
        "waiting": partial(waiting, rank, dist.FileStore(f"{folder}/waits", 2)),
        "c++": of_cpp(),
        "python": of_python(),
        "functional": functional(),
    }
    for name, case in cases.items():
        dist.barrier()
        with Collectives() as collectives:
            case()
        dist.barrier()  # a thread of gloo may tell of an end after it let us go on
        seen[name] = [ended - began for began, ended in collectives.spans()], collectives.under_way()
    if rank == 0:
        Path(folder, "seen.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(main, (sys.argv[1],), 2, start_method="fork")
