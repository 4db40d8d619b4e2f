"""What kernels of torch's compiler take on this processor, beside what the roofline says from what they compute.

    python -m benchmarks.fused_kernels [--model gpt2 --model bert]

Blocks of some families are compiled and trained, each family in a process of its own with the environment of a probe;
torch's profiler says what all kernels that the compiler generated took in one step, of their graphs is counted what
they compute (`autotune.worker.tracing.fused_work`), and an inspection's timings of the processor price that
(`autotune.timing.roofline`: `FUSED`, `FUSED_RANDOM`). A record says what each constant would be by each family: the
first by those without dropout, the second by those that have it. So both were found.

Target: for each family the kernels take 1/1.5 to 1.5 times what was predicted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.candidate import Candidate
from autotune.devices.allocator import preloaded
from autotune.devices.cpu import CpuDevice
from autotune.specs import DeviceSpeed
from autotune.timeline.op_counts import Operator, OpKind
from autotune.timing.roofline import FUSED, FUSED_RANDOM, Machine
from autotune.units import GIB
from benchmarks.memory_accuracy import ROOT, model_spec, request
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import MET, SMALLEST, unmeasured, verdict

BATCH, LENGTH = 4, 256
ONE = {"num_hidden_layers": 1, "vocab_size": 1000}
"""What is compiled for one block serves all that are alike, so of one a graph's work is that of a step."""
NARROW = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 1, "vocab_size": 1000},
    "bert-base": ONE,
    "opt-125m": ONE,
    "llama-3.2-1b": {**ONE, **NARROW, "head_dim": 64},
    "qwen3-8b": {**ONE, **NARROW, "head_dim": 64},
}
SMALL = {"gpt2": {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 100}}
KINDS: tuple[OpKind, OpKind] = ("fused_pointwise", "fused_random")
WITHIN = 1.5
STEPS = 5


def measured(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Compile a block, train it, and return the seconds of its kernels, what they compute and the device's speed."""
    import torch._inductor.config as inductor
    from torch._functorch import config as functorch
    from torch.profiler import ProfilerActivity, profile

    from autotune.worker.build.assembly import assemble
    from autotune.worker.measuring.device_speed import time_device
    from autotune.worker.tracing.fused_work import FusedWork

    works: list[FusedWork] = []
    inductor.cpp.enable_kernel_profile = True
    inductor.post_grad_custom_post_pass = lambda graph: works.append(FusedWork.of(graph))
    inductor.fx_graph_cache = functorch.enable_autograd_cache = False
    candidate = Candidate(compile="regional", micro_batch=BATCH)
    training = assemble(request(model_spec(model, changes), LENGTH, candidate))

    def step() -> None:
        training.loss(training.place(training.batch(0, BATCH))).backward()

    step()
    step()
    kernels = []
    for _ in range(STEPS):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            step()
        found = [event for event in seen.key_averages() if "cpp_fused" in event.key]
        kernels.append(sum(event.self_cpu_time_total for event in found) / 1e6)
    with tempfile.TemporaryDirectory() as folder:
        speed = time_device("cpu", folder)
    assert speed is not None, "memory is not limited here"
    work = sum(works, FusedWork())
    return {
        "seconds": statistics.median(kernels), "pointwise": work.pointwise, "random": work.random,
        "speed": speed.model_dump(mode="json"),
    }  # fmt: skip


def of_family(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Measure a family in a process of its own, and price what its kernels compute."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fused_kernels", "--child", json.dumps([model, changes])],
        env={**os.environ, **preloaded(CpuDevice(4 * GIB).environment(Candidate()))}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise unmeasured("fused_kernels", f"{model}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    speed = DeviceSpeed.load(found.pop("speed"), "speed")
    machine = Machine.measured(speed)
    pointwise, random = (
        machine.seconds(Operator(kind, kind, "none", 1, found[kind.removeprefix("fused_")], 0))
        for kind in KINDS
    )
    rest, drawn = found["seconds"] - random, found["seconds"] - pointwise
    return {
        "model": model, **found, "predicted": pointwise + random, "ratio": found["seconds"] / (pointwise + random),
        "fused": FUSED * pointwise / rest if rest > 0 else None,
        "fused_random": FUSED_RANDOM * drawn / random if found["random"] else None,
        "speed": speed.model_dump(mode="json"),
    }  # fmt: skip


def main() -> int:
    """Measure each family, print the kernels' time beside the predicted one, record both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", action="append", choices=FAMILIES, help="these families alone")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(*json.loads(options.child))))
        return MET
    families = SMALL if options.smallest else {name: FAMILIES[name] for name in options.model or FAMILIES}
    rows = []
    for model, changes in families.items():
        row = of_family(model, changes)
        rows.append(row)
        constant = "fused" if row["fused_random"] is None else "fused_random"
        print(
            f"{model}: kernels took {1e3 * row['seconds']:.1f} ms, {row['ratio']:.2f} times what was predicted"
            f" (by it {constant.upper()} is {row[constant]:.2f})",
            flush=True,
        )
    print(
        record(
            "fused_kernels", rows, options.out, smallest=options.smallest, cases=options.model, fused=FUSED,
            fused_random=FUSED_RANDOM, within=WITHIN,
        )
    )  # fmt: skip
    if options.smallest:
        return MET
    return verdict(
        [
            f"{row['model']}: {row['ratio']:.2f} times what was predicted"
            for row in rows
            if abs(math.log(row["ratio"])) > math.log(WITHIN)
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
