"""Make the page on real GPUs, and the table in the README's limits, of what `gpu_evidence.py` found.

    python -m benchmarks.gpu_report --write docs/gpu.md --readme README.md

Its record is `benchmarks/results/gpu_evidence.jsonl`, the state of `benchmarks/gpu_evidence.py` as it came back.
Without one both say that nothing has been run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from autotune.devices.gpu import DRIFT, SLACK
from autotune.memory.device_overhead import (
    CUDA_CONTEXT,
    CUDA_KERNELS,
    CUDA_SPREAD,
    NCCL_BUFFERS,
    NCCL_SPREAD,
)
from autotune.timing.collectives import ACHIEVED
from autotune.timing.machine import ATTENTION, ELEMENTWISE, HOST_LINK, LAUNCH, MATRIX, MEMORY, START
from autotune.units import GIB, MIB
from benchmarks.markdown import NOT_MEASURED, block, fill, off, table
from benchmarks.recording import RESULTS

RECORD = RESULTS / "gpu_evidence.jsonl"
MAKER = "benchmarks/gpu_report.py"
ALLOCATED, RESERVED = (0.01, 0.03), (0.03, None)
"""Median and worst error of predicted peaks that are the targets."""
PROBES, SECONDS, FREE_AGAIN = 8, 180.0, 2.0
"""At most: probes and seconds to gpt2-xl's proven winner, and seconds until an OOM's memory is back."""


class Evidence:
    """What was found, by its case."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        """Raise SystemExit for a record of a dry run, of which nothing follows."""
        self.calls: list[dict[str, Any]] = []
        self.results: dict[str, dict[str, Any]] = {}
        for line in lines:
            if line.get("subject", "a GPU") != "a GPU":
                raise SystemExit(f"{RECORD.name} is of {line['subject']}: nothing was measured")
            if "call" in line:
                self.calls.append(line["call"])
            elif "result" in line:
                self.results[line["case"]] = line["result"]

    @classmethod
    def read(cls, path: Path = RECORD) -> Evidence:
        """Return the recorded evidence; none of it where there is no record."""
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return cls(json.loads(line) for line in lines)

    def of(self, section: str) -> list[dict[str, Any]]:
        """Return the probes of a section."""
        return [
            found for name, found in self.results.items() if name.startswith(section) and "measured" in found
        ]

    def pairs(self) -> list[dict[str, Any]]:
        """Return the probes that trained and were predicted."""
        return [
            row for row in (*self.of("memory "), *self.of("variant ")) if row["measured"]["verdict"] == "ok"
            and row.get("predicted", {}).get("verdict") == "ok"
        ]  # fmt: skip

    @property
    def gpus(self) -> list[str]:
        """Return the names of the GPUs that it is of."""
        return list(dict.fromkeys(call["device"] for call in self.calls))


def page(written: str, evidence: Evidence) -> str:
    """Return the page with the evidence between its marks."""
    return fill(written, MAKER, block(_made(evidence)))


def limits(written: str, evidence: Evidence) -> str:
    """Return the README with the table of what has been run on which GPU."""
    rows = [
        (gpu, ", ".join(_run_on(evidence)) or "nothing that ended well", _day(evidence))
        for gpu in evidence.gpus
    ]
    made = table(("GPU", "run on it", "last"), rows or [("none", "nothing", "never")])
    return fill(written, MAKER, block(made))


def _run_on(evidence: Evidence) -> list[str]:
    found = []
    if pairs := evidence.pairs():
        found.append(f"{len(pairs)} predicted probes")
    for name, what in (
        ("run without predictions", "gpt2 with real OOMs"),
        ("run with predictions", "gpt2-xl"),
    ):
        if "winner" in evidence.results.get(name, {}):
            found.append(f"a run of {what} to its winner")
    passed = [
        name
        for name, found in evidence.results.items()
        if name.startswith("test_") and found.get("code") == 0
    ]
    return [*found, *([f"{len(passed)} files of tests/gpu"] if passed else [])]


def _day(evidence: Evidence) -> str:
    return str(max(call["date"] for call in evidence.calls)).partition("T")[0]


def _made(evidence: Evidence) -> list[str]:
    if not evidence.calls:
        return [
            "**Nothing that was run on a GPU is on record.** What was seen on a first one by hand is in "
            "[log.md](log.md#on-a-gpu).", "",
            "## Constants", "", *_constants(evidence),
        ]  # fmt: skip
    return [
        *_where(evidence), "", "## Memory", "", *_memory(evidence), "", "## Speed", "", *_speed(evidence), "",
        "## Whole runs", "", *_runs(evidence), "", "## Constants", "", *_constants(evidence), "",
        "## What failed", "", *_failures(evidence),
    ]  # fmt: skip


def _where(evidence: Evidence) -> list[str]:
    lines = []
    for call in evidence.calls:
        known = ", ".join(f"{name} {version}" for name, version in call["versions"].items())
        lines.append(
            f"- {call['date']}: {call['device']}, driver {call['driver']}; {known}; `{call['command']}`"
        )
    return lines


def _memory(evidence: Evidence) -> list[str]:
    pairs = evidence.pairs()
    if not pairs:
        return [f"{NOT_MEASURED.capitalize()}."]
    rows = [
        (row["model"], row["rung"], str(row["micro_batch"]), *(
            cell for key in ("allocated", "reserved", "device_peak")
            for cell in (f"{row['measured'][key] / GIB:.3f}", f"{_error(row, key):+.2%}")
        ))
        for row in pairs
    ]  # fmt: skip
    lines = table(
        (
            "model",
            "rung",
            "micro-batch",
            "allocated GiB",
            "error",
            "reserved GiB",
            "error",
            "device GiB",
            "error",
        ),
        rows,
    )
    for key, (median, worst) in (("allocated", ALLOCATED), ("reserved", RESERVED)):
        errors = [abs(_error(row, key)) for row in pairs]
        met = statistics.median(errors) <= median and (worst is None or max(errors) <= worst)
        asked = f"at most {median:.0%}" + ("" if worst is None else f", and {worst:.0%}")
        lines += ["", f"{key.capitalize()}: {off(errors)}; {asked} asked: {'met' if met else '**missed**'}."]
    return lines


def _speed(evidence: Evidence) -> list[str]:
    pairs = evidence.pairs()
    if not pairs:
        return [f"{NOT_MEASURED.capitalize()}."]
    rows = [
        (row["model"], row["rung"], str(row["micro_batch"]), f"{row['measured']['global_step']:.4f}",
         f"{_error(row, 'global_step'):+.0%}", *_beside(row),
         ", ".join(row["measured"]["attention_kernels"]) or "-")
        for row in pairs
    ]  # fmt: skip
    heads = ("model", "rung", "micro-batch", "seconds of a global step", "error", "busiest engine",
             "of what the data sheet allows", "attention")  # fmt: skip
    return [
        *table(heads, rows), "", f"Predicted seconds: {off(_error(row, 'global_step') for row in pairs)}.",
    ]  # fmt: skip


def _beside(row: dict[str, Any]) -> tuple[str, str]:
    """Return which engine a step is predicted to wait for, and its measured speed as a share of the roofline."""
    found = row.get("roofline")
    return (
        (found["busiest"], f"{found['bound'] / row['measured']['global_step']:.0%}") if found else ("-", "-")
    )


def _runs(evidence: Evidence) -> list[str]:
    rows = []
    for name in ("run without predictions", "run with predictions", "grid replay"):
        found = evidence.results.get(name)
        if found is None or "failed" in found:
            continue
        ending = found.get("winner") or found.get("ended", "")
        rows.append((name, ending, str(found["probes"]), str(found["ooms"]), f"{found['seconds']:.0f}"))
    lines = table(("run", "ended with", "probes", "OOMs", "seconds"), rows) if rows else ["None ended."]
    run = evidence.results.get("run with predictions", {})
    if "winner" in run:
        met = run["probes"] <= PROBES and run["seconds"] <= SECONDS
        asked = f"at most {PROBES} probes and {SECONDS / 60:.0f} minutes asked"
        lines += ["", f"gpt2-xl: {asked}: {'met' if met else '**missed**'}."]
    back = evidence.results.get("given back", {})
    if "free_again_seconds" in back:
        seconds = back["free_again_seconds"]
        lines += [
            "", f"After an OOM the device was free again in {seconds:.2f} s; at most {FREE_AGAIN:.0f} s asked: "
            f"{'met' if seconds <= FREE_AGAIN else '**missed**'}.",
        ]  # fmt: skip
    return lines


def _median_mib(found: Sequence[int]) -> str:
    return f"{statistics.median(found) / MIB:.0f} MiB" if found else NOT_MEASURED


def _constants(evidence: Evidence) -> list[str]:
    """Return every constant that a GPU decides, beside what was measured of it."""
    probes = [row["measured"] for row in evidence.of("") if row["measured"]["verdict"] == "ok"]
    measured = [row for row in probes if row["baseline"]]
    context = _median_mib([row["baseline"] for row in measured])
    kernels = _median_mib([row["device_peak"] - row["reserved"] - row["baseline"] for row in measured])
    facts = evidence.results.get("facts", {})
    kept = NOT_MEASURED
    if "behind" in facts:
        kept = f"{(facts['behind'][-1]['used'] - facts['before']['used']) / MIB:.0f} MiB"
    errors = [_error(row, "global_step") for row in evidence.pairs()]
    speed = (
        f"predicted seconds {statistics.median(errors):+.0%} off in the median" if errors else NOT_MEASURED
    )
    reached = evidence.results.get("engines", {}).get("shares") or {}

    def alone(share: str) -> str:
        return f"{reached[share]:.0%} of single operators; {speed}" if share in reached else speed

    launch = f"{reached['launch'] * 1e6:.1f} µs together; {speed}" if "launch" in reached else speed
    rows = [
        (
            "a CUDA context",
            f"{CUDA_CONTEXT / MIB:.0f} MiB, with kernels ± {CUDA_SPREAD / MIB:.0f} MiB",
            context,
        ),
        ("kernels that a training loads", f"{CUDA_KERNELS / MIB:.0f} MiB", kernels),
        (
            "what a driver keeps behind a context",
            f"up to {DRIFT / MIB:.0f} MiB; {SLACK / MIB:.0f} MiB unseen",
            kept,
        ),
        ("NCCL's buffers", f"{NCCL_BUFFERS / MIB:.0f} ± {NCCL_SPREAD / MIB:.0f} MiB", NOT_MEASURED),
        ("collectives' share of the links", f"{ACHIEVED:.0%}", NOT_MEASURED),
        ("matrix products' share of the peak, Hopper", f"{MATRIX[9]:.0%}", alone("matrix")),
        ("attention's share of the peak, Hopper", f"{ATTENTION[9]:.0%}", alone("attention")),
        ("share of the memory's bandwidth", f"{MEMORY:.0%}", alone("memory")),
        ("share of the host link's bandwidth", f"{HOST_LINK:.0%}", alone("host_link")),
        ("elementwise work", f"{ELEMENTWISE:g} times", speed),
        ("start of a kernel; launch from Python", f"{START * 1e6:.0f} and {LAUNCH * 1e6:.0f} µs", launch),
    ]
    return table(("constant", "assumed", "measured"), rows)


def _failures(evidence: Evidence) -> list[str]:
    failed = [f"- {name}: {found['failed']}" for name, found in evidence.results.items() if "failed" in found]
    ended = [
        f"- {name}: {found['measured']['verdict']}: {found['measured'].get('detail', '')}"
        for name, found in evidence.results.items()
        if found.get("measured", {}).get("verdict", "ok") not in {"ok", "oom"}
    ]
    tests = [
        f"- {name}: exit code {found['code']}"
        for name, found in evidence.results.items()
        if found.get("code")
    ]
    return [*failed, *ended, *tests] or ["Nothing did."]


def _error(row: dict[str, Any], key: str) -> float:
    return float(row["predicted"][key] / row["measured"][key] - 1)


def main() -> None:
    """Fill the page, and the README where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, required=True, help="the page")
    parser.add_argument("--readme", type=Path, help="the README")
    options = parser.parse_args()
    evidence = Evidence.read()
    options.write.write_text(page(options.write.read_text("utf-8"), evidence), "utf-8")
    if options.readme:
        options.readme.write_text(limits(options.readme.read_text("utf-8"), evidence), "utf-8")


if __name__ == "__main__":
    main()
