"""Put what was recorded, and what exports declare, into the pages on runs, searches, estimates, step times and exports.

    python -m benchmarks.records_page --write docs/runs.md

fills that page, and those beside it that it knows. Only what stands between the marks is made; the pages' own sentences
stay.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.candidate import AXES, Candidate
from autotune.exports import EXPORTERS
from autotune.exports.lightning import FSDP_ARGUMENTS
from autotune.techniques.check import axis_of
from autotune.units import GIB
from benchmarks import peers_tables
from benchmarks.accuracy_by_class import CLOSE
from benchmarks.markdown import NOT_MEASURED, block, fill, off, read, source, table
from benchmarks.recording import RESULTS

MAKER = "benchmarks/records_page.py"
PARTS = {
    "start and import": "start, and import of torch and transformers (cold)", "build": "building the model",
    "verdict and teardown": "verdict and teardown",
}  # fmt: skip
"""Parts of a probe that are no training, by their names in the record."""


def probe_overhead() -> str:
    """Return what a probe takes beyond its training steps: the median of each part, cold and warm."""
    document = read("probe_overhead")
    launchers = [
        name for name in ("cold", "warm") if any(row["launcher"] == name for row in document["rows"])
    ]
    rows = [
        (
            name,
            *(
                f"{statistics.median(row[part] for row in document['rows'] if row['launcher'] == launcher):.2f} s"
                for launcher in launchers
            ),
        )
        for part, name in PARTS.items()
    ]
    seconds, ratio = document["overhead_seconds"], document["overhead_over_step"]
    together = (
        f"Cold together {seconds:.1f} s, {ratio:.1f} times a bare training step (one sequence of 64 tokens)."
    )
    if "warm_seconds" in document:
        together += (
            f" Warm {document['warm_seconds']:.2f} s beyond the build; the first of a run waits "
            f"{document['first_warm']['start and import']:.1f} s for the process that the others are forked from."
        )
    return block([*table(("part", *launchers), rows), "", together, source(document)])


def fewer_probes() -> str:
    """Return how many probes runs took with predictions and without."""
    document = read("fewer_probes")
    rows = []
    for row in document["rows"]:
        ours, blind = row["predicted"], row["blind"]
        rows.append(
            [
                row["model"], row["device"], *(f"{run['probes']} ({run['oom']} OOM)" for run in (ours, blind)),
                *(f"{run['seconds']:.0f} s" for run in (ours, blind)), ours["winner"],
                "the same" if blind["winner"] == ours["winner"] else blind["winner"],
                _beside(row["again"]),
            ]
        )  # fmt: skip
    without = "with `--no-predict`"
    heads = (
        "model",
        "device",
        "probes",
        without,
        "time",
        without,
        "winner",
        without,
        "its speed beside that",
    )
    said = [
        f"Together {document['probes_predicted']} probes instead of {document['probes_blind']}, of which "
        f"{document['oom_predicted']} instead of {document['oom_blind']} ran out of memory, in "
        f"{document['seconds_predicted']:.0f} s instead of {document['seconds_blind']:.0f} s.",
        "Where the winners differ and both were measured again, in alternation, the share has its 95% interval.",
    ]  # fmt: skip
    return block([*table(heads, rows), "", *said, source(document)])


def search_scale() -> str:
    """Return what a proposal among many candidates takes, and a long journal; that they are not measured before."""
    if not (RESULTS / "search_scale.json").exists():
        return block([f"{NOT_MEASURED.capitalize()} yet: `python -m benchmarks.search_scale`."])
    document = read("search_scale")
    rows = [
        [
            f"`{row['strategy']}`", f"{row['candidates']:,}", f"{row['seconds']:.3f} s", f"{row['first']:.2f} s",
            "the same" if row["resumes"] else "another",
        ]
        for row in document["rows"]
    ]  # fmt: skip
    heads = ("strategy", "candidates", "a proposal", "the first of a search", "continued after a cut")
    journal = document["journal"]
    said = f"A journal of {journal['lines']:,} lines is replayed in {journal['seconds']:.2f} s."
    return block([*table(heads, rows), "", said, source(document)])


def racing_saving() -> str:
    """Return what searches took with racing and without."""
    document = read("racing_saving")
    rows = [
        [
            row["case"], f"`{row['strategy']}`",
            *(f"{row[name]['seconds']:.0f} s ({row[name]['of_finals']:.0f} s)" for name in ("raced", "whole")),
            f"{row['raced']['ended_early']} of {row['raced']['probes']}", row["raced"]["winner"],
            "the same" if row["raced"]["winner"] == row["whole"]["winner"] else row["whole"]["winner"],
            f"{row['winner_share']:.0%}",
        ]
        for row in document["rows"]
    ]  # fmt: skip
    heads = (
        "case", "strategy", "probes and finals (of which finals)", "without racing", "ended early", "winner",
        "without racing", "its speed over that",
    )  # fmt: skip
    said = (
        f"Together {document['raced']:.0f} s with racing, {document['whole']:.0f} s without: less by what probes save, "
        "more or less by what finals take, which depends on how near the finalists happened to come out."
    )
    return block([*table(heads, rows), "", said, source(document)])


def _beside(again: dict[str, Any]) -> str:
    """Return how fast a winner is beside another, with the interval; a dash where they were not measured again."""
    if "interval" not in again:
        return "-"
    low, high = again["interval"]
    return f"{again['share']:.2f} ({low:.2f} to {high:.2f})"


def memory_accuracy() -> str:
    """Return how far predicted peaks were off: of small trainings by architecture, and of published runs."""
    small, published = read("memory_accuracy-part1"), read("memory_accuracy-part2")
    models = dict.fromkeys(row["model"] for row in small["rows"])
    by_model = [
        [model, str(len(errors)), off(errors)]
        for model in models
        if (errors := [row["error"] for row in small["rows"] if row["model"] == model])
    ]
    by_run = [
        [
            row["model"], str(row["micro_batch"]), row["published"], f"{row['measured'] / GIB:.2f} GiB",
            f"{row['predicted'] / GIB:.2f} GiB", f"{row['error']:+.1%}",
        ]
        for row in published["rows"]
    ]  # fmt: skip
    return block(
        [
            "Small models, trained for two real steps on a processor, every allocation counted:",
            "", *table(("model", "trainings", "predicted peak off by"), by_model), "", source(small), "",
            "Runs that others published, on GPUs:", "",
            *table(("model", "micro-batch", "they measured", "published", "predicted", "off by"), by_run), "",
            source(published),
        ]
    )  # fmt: skip


def ladder_pricing() -> str:
    """Return how long whole ladders take to price, how few of their rungs are traced, and what wins."""
    if not (RESULTS / "ladder_pricing.json").exists():
        return block([f"{NOT_MEASURED.capitalize()} yet: `python -m benchmarks.ladder_pricing`."])
    document = read("ladder_pricing")
    rows = [
        [
            row["case"], str(row["gpus"]), str(row["rungs"]),
            f"{row['traced']}, {row['composed']} and {row['untraceable']}",
            f"{row['seconds']:.0f} s (at most {document['limit']:g})", f"{row['processor_seconds']:.0f} s",
            f"{row['furthest']:.3%} ({row['drawn']} drawn)",
            f"{_share(row['winner_mfu'])} ({_share(row['plain_mfu'])})",
        ]
        for row in document["rows"]
    ]  # fmt: skip
    heads = (
        "model", "GPUs", "rungs", "traced, composed and untraceable", "all priced after", "of processors",
        "furthest from a trace of its own", "predicted MFU of the fastest (of plain bf16)",
    )  # fmt: skip
    winners = [f"Fastest of {row['case']}: `{_off_default(row['winner'])}`." for row in document["rows"]]
    return block([*table(heads, rows), "", *winners, "", source(document)])


def _share(value: float | None) -> str:
    return "does not fit" if value is None else f"{value:.1%}"


def _off_default(key: str) -> str:
    """Return of a candidate's key the fields that are off their defaults."""
    plain = Candidate().key().split(",")
    return ", ".join(one for one in key.split(",") if one not in plain) or "plain bf16"


def coverage() -> str:
    """Return how many architectures of transformers can be traced, and which cannot."""
    document = read("coverage")
    failed = [f"`{row['model_type']}`" for row in document["rows"] if row["reason"]]
    return block(
        [
            f"{document['traced']} of {len(document['rows'])} causal language models of transformers can be traced "
            f"({document['share']:.0%}). Not: {', '.join(failed)}. What trains all the same is probed without "
            "predictions.",
            source(document),
        ]
    )


VISION = "ForImageClassification"


def accuracy_by_class() -> str:
    """Return how far predicted peaks were off in all classes of transformers, and which were further off."""
    document = read("accuracy_by_class")
    rows = document["rows"]
    errors = [row["error"] for row in rows if "error" in row]
    further = [f"`{row['class']}` ({row['error']:+.2%})" for row in rows if abs(row.get("error", 0)) > CLOSE]
    refused = [f"`{row['class']}`" for row in rows if row.get("reason", "").startswith("cannot be traced")]
    others = len(rows) - len(errors) - len(refused)
    language = max(abs(row.get("error", 0)) for row in rows if not row["class"].endswith(VISION))
    return block(
        [
            f"{len(rows)} classes of transformers (language models: causal, masked and sequence-to-sequence; image "
            f"classification), made shallow and narrow: {len(errors)} were traced and trained. Their peaks are off by "
            f"{off(errors)}; {document['within']:.1%} are within {CLOSE:.1%}. Of language models none is off by more "
            f"than {language:.2%}.",
            *([f"Further off: {', '.join(further)}."] if further else []),
            f"Not compared: {len(refused)} that a trace refuses ({', '.join(refused)}), and {others} that do not build "
            f"or train as narrow as this.",
            source(document),
        ]
    )  # fmt: skip


def step_time() -> str:
    """Return predicted over published speed by GPU."""
    document = read("step_time")
    rows = document["rows"]
    lines = [
        _ratios(gpu, [row for row in rows if row["gpu"] == gpu])
        for gpu in sorted({row["gpu"] for row in rows})
    ]
    lines.append(_ratios("all", rows))
    worst = [
        [name, f"{min(ratios):.2f} to {max(ratios):.2f} ({len(ratios)} row{'s' * (len(ratios) > 1)})"]
        for name, wanted in WORST.items()
        if (ratios := [row["ratio"] for row in rows if wanted(row)])
    ]
    return block(
        [
            *table(("GPU", "models", "runs", "median", "80% of runs within"), lines), "",
            "Where it is furthest off:", "", *table(("runs", "predicted over published"), worst), "", source(document),
        ]
    )  # fmt: skip


WORST: dict[str, Callable[[dict[str, Any]], bool]] = {
    "H100, sequences up to 4,096": lambda row: _h100(row) and row["seq_len"] <= 4096,
    "H100, sequences of 8,192 and 16,384": lambda row: _h100(row) and row["seq_len"] in {8192, 16384},
    "H100, sequences of 32,768": lambda row: _h100(row) and row["seq_len"] == 32768,
    "MPT-125m, a model of width 768": lambda row: bool(row["model"] == "MPT-125m"),
    "MPT-70b on 64 A100 40 GB, 2 sequences of 2,048": lambda row: bool(
        row["model"] == "MPT-70b"
        and row["gpu"] == "a100_40gb"
        and row["gpus"] == 64
        and row["micro_batch"] == 2
    ),
}
"""Rows of published runs that predictions are furthest off for."""


def _h100(row: dict[str, Any]) -> bool:
    return str(row["gpu"]).startswith("h100")


def _ratios(name: str, rows: list[dict[str, Any]]) -> list[str]:
    ratios = [row["ratio"] for row in rows]
    low, high = statistics.quantiles(ratios, n=10)[::8]
    models = ", ".join(sorted({row["model"].partition("-")[0] for row in rows}))
    return [name, models, str(len(ratios)), f"{statistics.median(ratios):.2f}", f"{low:.2f} to {high:.2f}"]


def exports() -> str:
    """Return where each export puts every axis, or that it refuses what is off the default."""
    targets = list(EXPORTERS)
    fields: dict[str, dict[str, Any]] = {
        name: importlib.import_module(path.partition(":")[0]).FIELDS for name, path in EXPORTERS.items()
    }
    rows = []
    for axis in AXES:
        cells = [fields[target][axis].where if axis in fields[target] else "-" for target in targets]
        rows.append([f"`{axis}`", *cells, axis_of(axis).not_exported or "-"])
    return block(table(("axis", *(f"`{name}`" for name in targets), "why a library may not have it"), rows))


def fsdp_arguments() -> str:
    """Return what stands for each argument of Lightning's FSDPStrategy."""
    rows = [[f"`{name}`", stands] for name, stands in FSDP_ARGUMENTS.items()]
    return block(table(("argument of `FSDPStrategy`", "with `ModelParallelStrategy`"), rows))


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "runs.md": {
        "probe overhead": probe_overhead,
        "fewer probes": fewer_probes,
        "search scale": search_scale,
        "racing": racing_saving,
    },
    "search_spaces.md": {"peers": peers_tables.peers, "peers live": peers_tables.peers_live},
    "estimate.md": {
        "memory accuracy": memory_accuracy,
        "accuracy by class": accuracy_by_class,
        "ladder": ladder_pricing,
        "coverage": coverage,
    },
    "step_time.md": {"measured": step_time},
    "exports.md": {"fsdp": fsdp_arguments, "declared": exports},
}
"""What fills which place of which page."""


def page(name: str, written: str) -> str:
    """Return a page with what is made for it today."""
    for what, make in PAGES[name].items():
        written = fill(written, MAKER, make(), what)
    return written


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", type=Path, required=True, metavar="PAGE.md", help="docs/runs.md")
    folder = parser.parse_args().write.parent
    for name in PAGES:
        (folder / name).write_text(page(name, (folder / name).read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
