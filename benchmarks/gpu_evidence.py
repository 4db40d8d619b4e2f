"""All that has to be seen on a real GPU, in one command of any length; what it found is saved at once.

    python -m benchmarks.gpu_evidence --minutes 9 --wheels build/gpu-wheels [--out build/evidence]
    python -m benchmarks.gpu_evidence --minutes 1 --device sim         a dry run: every part, on the smallest model

It needs Python, torch, transformers and a folder of wheels (`make gpu-wheels`), and neither a network, an environment
of its own nor an installation: it runs in a checkout. `gpu_cases.py` lists what it looks at, the most valuable first.
It ends by itself; the next call goes on where this one stopped. Its state is one file, `gpu_evidence.jsonl` in `--out`:
take it along to another machine. The folders of whole runs lie beside it, packed, as many as `--max-files` and as
large as `--max-file-size` allow; `gpu-grid.jsonl` is a recorded grid, for `--device replay:`. `--only PATTERN` chooses
among the cases; `--again NAME` (or `failed`, or `given-up`) runs one once more, as after its error was mended. Given up
is a case that was begun in two calls which came to no end: it may be what ended them. `python -m benchmarks.gpu_report`
makes docs/gpu.md of it.

Targets, which the page judges: of the allocated peak a median error of at most 1% and none above 3%, of the reserved
one a median of at most 3%; gpt2-xl to a proven winner in at most 8 probes and 3 minutes; an OOM gives the device's
memory back within 2 s.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shlex
import sys
import time
import zipfile
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.evidence import Attachments, State, WrongState, gather  # noqa: E402

STATE = "gpu_evidence.jsonl"
MARGIN = 10.0
"""Seconds before the end from which on nothing begins: what runs ends, and processes are reaped."""


def unpack(wheels: Path, folder: Path) -> list[str]:
    """Unpack a folder of wheels, and have this process and its children find what is in it; return the wheels' names.

    It goes before what the machine has itself, which may be too old.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(wheels.glob("*.whl"))
    for wheel in found:
        done = folder / f".{wheel.stem}"
        if not done.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            done.touch()
    sys.path.insert(1, str(folder))
    earlier = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), str(folder), *earlier]))
    importlib.invalidate_caches()
    return [wheel.name for wheel in found]


def versions() -> dict[str, str]:
    """Return the versions of what matters, as far as it is installed."""
    from importlib import metadata

    found = {"python": platform.python_version(), "system": platform.release()}
    for name in (
        "torch",
        "transformers",
        "triton",
        "liger-kernel",
        "torchao",
        "bitsandbytes",
        "nvidia-ml-py",
    ):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> int:
    """Gather what there is time for; 0 where nothing failed, 1 where a case did, 2 where nothing could be looked at."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="after which it ends")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N; sim for a dry run")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to take what is missing from")
    parser.add_argument("--out", type=Path, help="folder of the state and the files beside it")
    parser.add_argument("--max-files", type=int, default=8, help="files to leave there at most")
    parser.add_argument("--max-file-size", type=float, default=16.0, help="MiB of each at most")
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        help="a case to run once more; `failed` or `given-up` for all such",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN",
        help="cases of these names alone, such as 'memory *x8'; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--smallest", action="store_true", help="the dry run, which shows that the script runs"
    )
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes - MARGIN
    if options.smallest:
        options.device = "sim"
    dry = options.device == "sim"
    out = options.out or ROOT / "build" / ("evidence-dry" if dry else "evidence")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )
    wheels = unpack(options.wheels, ROOT / "build" / "unpacked-wheels") if options.wheels else []
    largest = int(options.max_file_size * 2**20)
    try:
        state = State(out / STATE, "a simulated GPU" if dry else "a GPU", largest)
    except WrongState as error:
        print(f"gpu_evidence: nothing was measured: {error}", file=sys.stderr)
        return 2
    again = set(options.again)
    for name, line in list(state.results.items()):
        if name in again or ("failed" in again and "failed" in line["result"]):
            state.reopen(name)
    try:
        from autotune.errors import AutotuneError
        from benchmarks.gpu_cases import Bench, cases
    except ModuleNotFoundError as error:
        print(
            f"gpu_evidence: nothing was measured: {error.name} is not installed; `make gpu-wheels`, where there is a "
            "network, collects what is missing, and --wheels build/gpu-wheels takes it from there", file=sys.stderr,
        )  # fmt: skip
        return 2
    try:
        bench = Bench(options.device, Attachments(out, options.max_files, largest))
    except AutotuneError as error:
        print(f"gpu_evidence: nothing was measured: {error}", file=sys.stderr)
        return 2
    with bench.closing:
        device = bench.device.facts()
        state.called(
            date=datetime.now(UTC).isoformat(timespec="seconds"), device=device.name, driver=device.driver,
            versions=versions(), wheels=wheels,
            command=shlex.join(["python", "-m", "benchmarks.gpu_evidence", *sys.argv[1:]]),
        )  # fmt: skip
        everything = cases(bench)
        for name in state.given_up(everything) if "given-up" in again else ():
            state.reopen(name)
        asked = [
            case
            for case in everything
            if not options.only or any(fnmatchcase(case.name, pattern) for pattern in options.only)
        ]
        for case, found in gather(asked, state, until):
            said = found.get("failed") or found.get("measured", {}).get("verdict") or "done"
            print(f"{case.name}: {said}", flush=True)
        left = state.left(everything)
    failed = [
        case.name for case in everything if "failed" in state.results.get(case.name, {}).get("result", {})
    ]
    given_up = state.given_up(everything)
    ended = len(everything) - len(left) - len(given_up)
    for name in given_up:
        print(f"{name}: given up: calls that began it did not end; --again given-up tries once more")
    print(f"{ended} of {len(everything)} cases ended, {len(failed)} of them failed; {out / STATE}")
    return 1 if failed or given_up else 0


if __name__ == "__main__":
    sys.exit(main())
