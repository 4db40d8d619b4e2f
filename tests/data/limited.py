"""Train one model under several limits on private memory; print which combinations fit, as JSON.

Run in a process of its own: `python limited.py FOLDER offload:MiB ...`.
"""

import gc
import json
import resource
import sys
from pathlib import Path

import torch

from autotune.worker.build.assembly import assemble
from tests.data.requests import family, request

LARGE = {"n_embd": 512, "n_layer": 8, "n_head": 8, "vocab_size": 8000}
"""29 million parameters: 112 MiB in fp32, and as much for gradients and for each of AdamW's two moments."""


def private_bytes() -> int:
    """Return what RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel reports no VmData")


def train(folder: Path, **changes: object) -> None:
    offload = str(changes.pop("offload", "none"))
    training = assemble(
        request(family("gpt2", **changes), folder, seq_len=16, precision="fp32", offload=offload)
    )
    for step in range(2):
        training.loss(training.batch(step, 1)).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    training.close()


def fits(folder: Path, offload: str, allowance: int) -> bool:
    """Train with `allowance` bytes of private memory beyond what the process holds already."""
    resource.setrlimit(resource.RLIMIT_DATA, (private_bytes() + allowance, resource.RLIM_INFINITY))
    try:
        train(folder, offload=offload, **LARGE)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        gc.collect()
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    train(folder)  # what is loaded at first use must not count
    asked = [argument.split(":") for argument in sys.argv[2:]]
    print(json.dumps({f"{offload}:{mib}": fits(folder, offload, int(mib) << 20) for offload, mib in asked}))
