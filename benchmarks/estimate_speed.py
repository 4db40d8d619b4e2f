"""How long a trace takes, and a further micro-batch of it; torch's own MemTracker is timed beside them.

    python -m benchmarks.estimate_speed [--model gpt2-xl] [--seq-len 1024]

Traced: model built, forward and backward at micro-batches 2, 3 and 1, two optimizer steps. MemTracker: one training
step under fake tensors. Both after imports, in fresh processes. The table is the whole of `autotune estimate` for
Llama-3.1-8B on 8 GPUs, imports and start of its workers included, with an empty cache.

Targets, on 2 cores: a trace within 3 s and 2 GiB, a further micro-batch within 10 ms (allocated) and 0.3 s
(reserved), the whole table within 30 s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.recording import RESULTS, record  # noqa: E402
from benchmarks.verdict import SMALLEST, verdict  # noqa: E402

LIMITS = {"trace_seconds": 3.0, "allocated_seconds": 0.010, "reserved_seconds": 0.3, "peak_gib": 2.0}
TABLE_LIMIT = 30.0
"""Seconds for the whole table, on 2 cores."""


def traced(model: str, seq_len: int, device: str) -> dict[str, Any]:
    """Trace the model, price a further micro-batch, and return the seconds of each."""
    import torch
    import transformers  # noqa: F401 - part of the imports that are not timed

    from autotune.candidate import Candidate
    from autotune.memory.reserved import allocator_usage
    from autotune.worker.tracing.trace import trace
    from benchmarks.memory_accuracy import model_spec, request

    candidate = Candidate(precision="bf16" if device != "cpu" else "fp32")
    probe = request(model_spec(model, {}), seq_len, candidate, device)
    # transformers imports a model's code when it is first built; that is an import too.
    from autotune.worker.model import build_model

    build_model(probe.model, seq_len, torch.device("meta"))
    began = time.perf_counter()
    timeline = trace(probe)
    seconds = time.perf_counter() - began
    return {
        "trace_seconds": seconds,
        "events": len(timeline.program(4).events),
        "allocated_seconds": timed(lambda size: timeline.allocated(size)),
        "reserved_seconds": timed(
            lambda size: allocator_usage(timeline, size, expandable_segments=True, blas_workspace=32 << 20)
        ),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def timed(price: Any) -> float:
    """Return the median seconds of pricing micro-batches that were not priced before."""
    seconds = []
    for size in range(5, 14):
        began = time.perf_counter()
        price(size)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def mem_tracker(model: str, seq_len: int, device: str) -> dict[str, Any]:  # noqa: ARG001 - as `traced`
    """Return the seconds that torch's MemTracker takes for one training step of the same model."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from autotune.worker.model import build_model
    from benchmarks.memory_accuracy import model_spec

    spec = model_spec(model, {})
    build_model(spec, seq_len, torch.device("meta"))
    began = time.perf_counter()
    with FakeTensorMode():
        built = build_model(spec, seq_len, torch.device("cpu")).model
        optimizer = torch.optim.AdamW(built.parameters(), fused=True)
        tokens = torch.zeros(2, seq_len, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(built, optimizer)
        with tracker:
            built(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"mem_tracker_seconds": time.perf_counter() - began}


def whole_table(smallest: bool) -> dict[str, Any]:
    """Run `autotune estimate` as a user does, and return its seconds and what its largest process took."""
    program = [sys.executable, "-m", "autotune"]
    command = ["estimate", "--model", "llama-3.1-8b", "--gpus", "8", "--seq-len", "2048", "--json"]
    if smallest:
        command = ["estimate", "--model", "tiny-gpt2", "--space", "minimal", "--seq-len", "64", "--json"]
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        done = subprocess.run(
            [*program, *command], cwd=ROOT, capture_output=True, text=True, check=True,
            env={**os.environ, "AUTOTUNE_CACHE": cache},
        )  # fmt: skip
        seconds = time.perf_counter() - began
    rungs = json.loads(done.stdout)["rungs"]
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return {
        "table_seconds": seconds,
        "rungs": len(rungs),
        "traced": sum("device_peak_bytes" in rung for rung in rungs),
        "peak_gib": largest,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="gpt2-xl")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    if options.smallest:
        options.model, options.seq_len = "tiny-gpt2", 64
    # First: the largest child so far is its own.
    results: dict[str, Any] = {"table": whole_table(options.smallest)}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for device in ("cuda:0",) if options.smallest else ("cuda:0", "cpu"):
            results[device] = pool.apply(traced, (options.model, options.seq_len, device))
        if not options.smallest:
            results["MemTracker"] = pool.apply(mem_tracker, (options.model, options.seq_len, "cpu"))
    for name, numbers in results.items():
        for key, value in numbers.items():
            most = TABLE_LIMIT if key == "table_seconds" else LIMITS.get(key)
            limit = "" if most is None else f"   at most {most:g}"
            shown = f"{value:10.4f}" if isinstance(value, float) else f"{value:10}"
            print(f"{name:11} {key:20} {shown}{limit}")
    rows = [{"of": name, **numbers} for name, numbers in results.items()]
    record(
        "estimate_speed",
        rows,
        options.out,
        smallest=options.smallest,
        model=options.model,
        seq_len=options.seq_len,
    )
    if options.smallest:
        return verdict([])
    found = {**results["cuda:0"], "table_seconds": results["table"]["table_seconds"]}
    limits = {**LIMITS, "table_seconds": TABLE_LIMIT}
    missed = [key for key, most in limits.items() if found[key] > most]
    return verdict([f"{key} of at most {limits[key]:g}: {found[key]:.3g}" for key in missed])


if __name__ == "__main__":
    sys.exit(main())
