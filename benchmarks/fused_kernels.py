"""What kernels of torch's compiler take on this processor, beside what the roofline says from what they compute.

    python -m benchmarks.fused_kernels [--case gpt2 --case mask]

A case is a block of a family that is compiled and trained, or a dropout mask that is drawn alone, each in a process of
its own with the environment of a probe. torch's profiler says what all kernels that the compiler generated took in one
step, of their graphs is counted what they compute (`autotune.worker.tracing.fused_work`), and an inspection's timings
of the processor price that. Each case says what a constant of `autotune.timing.machine` would be by it: `FUSED` those
that draw no random numbers, `FUSED_RANDOM` the others, in which what is computed beside the drawing counts to it.

Target: in each case the kernels take 1/1.5 to 1.5 times what was predicted.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.candidate import Candidate
from autotune.devices.allocator import preloaded
from autotune.devices.cpu import CpuDevice
from autotune.specs import DeviceSpeed
from autotune.timeline.op_counts import Operator, OpKind
from autotune.timing.machine import FUSED, FUSED_RANDOM, Machine
from autotune.units import GIB
from benchmarks.memory_accuracy import ROOT, model_spec, request
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import MET, SMALLEST, unmeasured, verdict

BATCH, LENGTH = 4, 256
ONE = {"num_hidden_layers": 1, "vocab_size": 1000}
"""What is compiled for one block serves all that are alike, so of one a graph's work is that of a step."""
NARROW = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 12}
CASES: dict[str, dict[str, Any]] = {
    "mask": {"elements": BATCH * 12 * LENGTH**2},
    "gpt2": {"n_layer": 1, "vocab_size": 1000},
    "bert-base": ONE,
    "opt-125m": ONE,
    "llama-3.2-1b": {**ONE, **NARROW, "head_dim": 64},
    "qwen3-8b": {**ONE, **NARROW, "head_dim": 64},
}
SMALL = {"mask": {"elements": 2**16}, "gpt2": {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 100}}
KINDS: tuple[OpKind, OpKind] = ("fused_pointwise", "fused_random")
WITHIN = 1.5
STEPS = 5


def step_of(case: str, sizes: dict[str, Any]) -> Callable[[], object]:
    """Return one step of a case, which compiles what it runs."""
    import torch

    from autotune.worker.build.assembly import assemble

    if case == "mask":
        activations = torch.empty(sizes["elements"])
        draw: Callable[[], object] = torch.compile(lambda: torch.rand_like(activations) > 0.1)
        return draw
    candidate = Candidate(compile="regional", micro_batch=BATCH)
    training = assemble(request(model_spec(case, sizes), LENGTH, candidate))
    return lambda: training.loss(training.place(training.batch(0, BATCH))).backward()


def measured(case: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of a case's kernels, what they compute, and the device's speed."""
    import torch._inductor.config as inductor
    from torch._functorch import config as functorch
    from torch.profiler import ProfilerActivity, profile

    from autotune.worker.measuring.device_speed import time_device
    from autotune.worker.tracing.fused_work import FusedWork

    works: list[FusedWork] = []
    inductor.cpp.enable_kernel_profile = True
    inductor.post_grad_custom_post_pass = lambda graph: works.append(FusedWork.of(graph))
    inductor.fx_graph_cache = functorch.enable_autograd_cache = False
    step = step_of(case, sizes)
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


def of_case(case: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Measure a case in a process of its own, and price what its kernels compute."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fused_kernels", "--child", json.dumps([case, sizes])],
        env={**os.environ, **preloaded(CpuDevice(4 * GIB).environment(Candidate()))}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise unmeasured("fused_kernels", f"{case}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    machine = Machine.measured(DeviceSpeed.load(found["speed"], "speed"))
    pointwise, random = (
        machine.seconds(Operator(kind, kind, "none", 1, found[kind.removeprefix("fused_")], 0))
        for kind in KINDS
    )
    by_it = (
        {"FUSED_RANDOM": FUSED_RANDOM * (found["seconds"] - pointwise) / random}
        if found["random"]
        else {"FUSED": FUSED * pointwise / found["seconds"]}
    )
    predicted = pointwise + random
    return {
        "case": case,
        **found,
        "predicted": predicted,
        "ratio": found["seconds"] / predicted,
        "by_it": by_it,
    }


def main() -> int:
    """Measure each case, print the kernels' time beside the predicted one, record both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="these cases alone")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(*json.loads(options.child))))
        return MET
    cases = SMALL if options.smallest else {name: CASES[name] for name in options.case or CASES}
    rows = []
    for case, sizes in cases.items():
        row = of_case(case, sizes)
        rows.append(row)
        [(constant, value)] = row["by_it"].items()
        print(
            f"{case}: kernels took {1e3 * row['seconds']:.1f} ms, {row['ratio']:.2f} times what was predicted "
            f"(by it {constant} is {value:.2f})",
            flush=True,
        )
    print(
        record(
            "fused_kernels", rows, options.out, smallest=options.smallest, cases=options.case, fused=FUSED,
            fused_random=FUSED_RANDOM, within=WITHIN,
        )
    )  # fmt: skip
    if options.smallest:
        return MET
    return verdict(
        [
            f"{row['case']}: {row['ratio']:.2f} times what was predicted"
            for row in rows
            if abs(math.log(row["ratio"])) > math.log(WITHIN)
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
