"""Trace what the evidence of a GPU is compared with, under whichever torch this Python has: one JSON line a candidate.

python -m tests.cuda_build.traced MODEL SEQ_LEN FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from autotune.candidate import Candidate
from autotune.memory.reserved import allocator_usage
from autotune.models.resolve import resolve
from autotune.probe.protocol import ProbeRequest
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from benchmarks.gpu_cases import VARIANTS, ladder


def main(model: str, seq_len: int, folder: Path) -> None:
    asked = [*ladder(), *(Candidate(**change) for _, change in VARIANTS)]
    first, *others = dict.fromkeys(candidate.rung() for candidate in asked)
    request = ProbeRequest(
        kind="trace", model=resolve(model, base=folder), candidate=first, also=tuple(others), seq_len=seq_len,
        accumulation_steps=2, device="cuda:0", budget=1 << 50, seed=0, sample_seconds=1, sample_steps=2, folder="",
    )  # fmt: skip
    print(
        json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version_info[:2]})
    )
    found = LocalTracer(TraceCache(folder / "cache")).trace(request, folder / "work", timeout=900)
    for candidate, trace in found.items():
        line = {
            "candidate": candidate.model_dump(exclude_defaults=True),
            "reason": trace.reason,
            "peaks": None,
        }
        if trace.timeline is not None:
            sizes = (2, 8) if trace.timeline.exact is None else (trace.timeline.exact,)
            used = [
                allocator_usage(trace.timeline, size, True, candidate.expandable_segments) for size in sizes
            ]
            line["peaks"] = [[one.requested_peak, one.allocated_peak, one.reserved_peak] for one in used]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
