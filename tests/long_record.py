"""The record of `make test-long`: which of its parts passed on which code, when, where, and how long each took.

    python -m tests.long_record begin FOLDER [SECONDS]   before the tests: picks what is to run, all or what fits
    python -m tests.long_record picked COMMAND FOLDER    what pytest runs for one of COMMANDS; nothing: none
    python -m tests.long_record end FOLDER               after them: writes what passed into tests/long_record.json
    python -m tests.long_record check                    whether all parts passed on the code as it stands; a second

A part is a file of `LONG`, or `apart`. `.ci/run` has the time for some of them: first what the record does not hold for
this code, then what passed longest ago. It ends with the check, so what did not fit has passed elsewhere, on the same
code.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from autotune.environment import look_around
from autotune.tracing.import_closure import import_closure

ROOT = Path(__file__).parents[1]
RECORD = Path("tests", "long_record.json")
ORDER = Path("tests", "order.toml")
"""Says which files are long, and what begins: nothing that a test gives."""
BEGUN = "begun.json"
APART = "apart"
"""The part that needs libraries of their own folder; `make apart` picks its tests by name, of these folders."""
FOLDERS_OF_APART = ("tests/memory", "tests/numerics")
COMMANDS = ("long", APART, "alone")
"""Each leaves a junit file of its name once all its tests have passed. A file can have tests for `long` and `alone`."""
SIDE_BY_SIDE = 2.3
"""Seconds of tests that pass in a second on two cores, where several run at a time; measured, and alone it is 1."""
UNKNOWN = 60.0
"""Seconds that a part is taken for that the record does not know."""

PACKAGES = ("autotune", "benchmarks", "tests")
BY_IMPORT = ("tests/contracts", "tests/memory", "tests/numerics", "tests/timeline")
"""Folders whose tests run what they import, and workers. All others run commands, or look at the whole tree."""
WORKER = "autotune.worker.__main__"
ALWAYS = ("constraints.txt", "pyproject.toml", "search_spaces", "tests/data")
DATA = {".yaml", ".json", ".csv", ".toml", ".txt"}


def covered(root: Path, part: str) -> dict[str, bytes]:
    """Return the content of all files that decide what a part gives, by name.

    Of a README that is what stands in its blocks, whose commands are run and whose output is compared.
    """
    files = {path for name in ALWAYS for path in _below(root / name)}
    files |= {path for path in _below(root / "autotune") if path.suffix in DATA}
    if part == APART or part.startswith(BY_IMPORT):
        files |= _imported(root, part)
    else:
        files |= {path for folder in PACKAGES for path in _below(root / folder) if _matters(root, path)}
        files |= {root / part, *((root / "docs").rglob("*.md") if part.startswith("tests/docs") else ())}
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(files)}
    if not part.startswith(BY_IMPORT) and part != APART:
        found["README.md"] = "".join(
            re.findall(r"```.*?```", (root / "README.md").read_text(), re.DOTALL)
        ).encode()
    return found


def _below(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder without what Python compiled there: tests leave that behind."""
    files = path.rglob("*.*") if path.is_dir() else [path]
    yield from (file for file in files if file.is_file() and file.parent.name != "__pycache__")


def _matters(root: Path, path: Path) -> bool:
    """Tell whether a file can change what a test sees that runs commands.

    Other tests and compiled files do not, nor do the benchmarks' records: pages show them, which `make test` compares.
    """
    if path.suffix not in DATA | {".py"} or path in {root / RECORD, root / ORDER}:
        return False
    if path.is_relative_to(root / "benchmarks" / "results"):
        return False
    return not (path.is_relative_to(root / "tests") and path.name.startswith("test_"))


def _imported(root: Path, part: str) -> set[Path]:
    """Return what the tests of a part import, the files of tests that they run by name, and the worker's source."""
    packages = {name: root / name for name in PACKAGES}
    folders = FOLDERS_OF_APART if part == APART else ()
    waiting = [path for folder in folders for path in sorted((root / folder).glob("test_*.py"))] or [
        root / part
    ]
    waiting += [
        conftest
        for path in tuple(waiting)
        for folder in path.relative_to(root).parents
        if (conftest := root / folder / "conftest.py").is_file()
    ]
    found = set(import_closure(WORKER, packages).values()) if _source(root, WORKER) else set()
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        here = set(import_closure(module, packages).values())
        found |= here
        waiting += [
            named for file in here if file.is_relative_to(root / "tests") for named in _named(root, file)
        ]
    return found


def _named(root: Path, path: Path) -> Iterator[Path]:
    """Yield the files beside a file that it names, and the modules of tests: it runs them in other processes."""
    for text in _texts(path.read_bytes()):
        if text.startswith("tests.") and (source := _source(root, text)):
            yield source
        elif "/" not in text and (path.parent / text).is_file():
            yield path.parent / text


@cache
def _texts(source: bytes) -> tuple[str, ...]:
    """Return the constants of a source that may name a file or a module."""
    texts = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return tuple(
        sorted(
            text
            for text in texts
            if isinstance(text, str) and (text.endswith(".py") or text.startswith("tests."))
        )
    )


def _source(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    return path if module.replace(".", "").replace("_", "").isalnum() and path.is_file() else None


def digest(root: Path, part: str) -> str:
    """Return one digest of all that a part covers, names included."""
    total = hashlib.sha256()
    for name, content in covered(root, part).items():
        total.update(f"{name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def read(root: Path) -> dict[str, Any]:
    """Return the record; one without parts where there is none."""
    try:
        found: dict[str, Any] = json.loads((root / RECORD).read_text())
        return found
    except FileNotFoundError:
        return {"runs": {}, "parts": {}}


def pick(record: dict[str, Any], digests: dict[str, str], seconds: float) -> list[str]:
    """Return the parts that fit into `seconds` of the clock: first those not recorded for this code, then by age."""

    def first(part: str) -> tuple[bool, str, float]:
        known = record["parts"].get(part)
        fresh = known is not None and known["digest"] == digests[part]
        return fresh, known["run"] if fresh else "", lasting(record, part)

    picked, left = [], seconds
    for part in sorted(digests, key=first):
        if lasting(record, part) <= left:
            picked.append(part)
            left -= lasting(record, part)
    return picked


def lasting(record: dict[str, Any], part: str) -> float:
    """Return the seconds of the clock that a part took, beside others where it may run beside others."""
    known = record["parts"].get(part, {"seconds": UNKNOWN, "alone": 0.0})
    together, alone = float(known["seconds"]), float(known["alone"])
    return (together - alone) / SIDE_BY_SIDE + alone


def begin(root: Path, folder: Path, long: tuple[str, ...], seconds: float = math.inf) -> list[str]:
    """Note before the tests which parts run, their code and the time, so that code that changes under them is found."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.xml"):
        old.unlink()
    digests = {part: digest(root, part) for part in (*long, APART)}
    parts = {part: digests[part] for part in pick(read(root), digests, seconds)}
    begun = {"parts": parts, "files": _files(root, parts), "at": time.time()}
    (folder / BEGUN).write_text(json.dumps(begun, indent=1))
    return list(parts)


def _files(root: Path, parts: Iterable[str]) -> dict[str, str]:
    """Return a digest of each file that decides what these parts give."""
    files = {name: content for part in parts for name, content in covered(root, part).items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def picked(root: Path, folder: Path, command: str) -> list[str]:
    """Return pytest's arguments for the parts of a command that were picked."""
    parts = json.loads((folder / BEGUN).read_text())["parts"]
    if command == APART:
        return list(FOLDERS_OF_APART) if APART in parts else []
    files = [part for part in parts if part != APART]
    return (
        files if command == "long" else [file for file in files if "mark.alone" in (root / file).read_text()]
    )


def end(root: Path, folder: Path) -> dict[str, Any]:
    """Write what passed into the record. Raises ValueError where tests were not well, or code changed under them."""
    begun = json.loads((folder / BEGUN).read_text())
    before, now = begun["files"], _files(root, begun["parts"])
    if changed := sorted(name for name in before.keys() | now if before.get(name) != now.get(name)):
        raise ValueError(f"{', '.join(changed)} changed while the tests ran: run make test-long again")
    run = datetime.fromtimestamp(begun["at"], UTC).isoformat(timespec="seconds")
    results = _results(folder)
    if unfinished := [
        command
        for command in COMMANDS
        if picked(root, folder, command) and not (folder / f"{command}.xml").exists()
    ]:
        raise ValueError(f"{', '.join(unfinished)}: not all tests passed, or they were interrupted")
    if missing := begun["parts"].keys() - results:
        raise ValueError(f"{folder} holds no results of {', '.join(sorted(missing))}")
    record = read(root)
    record["parts"] |= {
        part: {"digest": of, "run": run, **results[part]} for part, of in begun["parts"].items()
    }
    record["runs"][run] = {
        **_commit(root), "seconds": round(time.time() - begun["at"]), "environment": look_around().environment(),
    }  # fmt: skip
    still = {part["run"] for part in record["parts"].values()}
    record = {
        "runs": {name: of for name, of in sorted(record["runs"].items()) if name in still},
        "parts": dict(sorted(record["parts"].items())),
    }
    (root / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return record


def check(root: Path, long: tuple[str, ...]) -> str | None:
    """Return which parts the record does not show to have passed on the code as it stands, or None."""
    if not (old := outdated(root, long)):
        return None
    return (
        f"{RECORD} does not show that these passed on the code as it stands: {', '.join(old)}. Run make test-long and "
        "commit the record"
    )


def outdated(root: Path, long: tuple[str, ...]) -> list[str]:
    """Return the parts that the record does not show to have passed on the code as it stands."""
    known = read(root)["parts"]
    return [part for part in (*long, APART) if known.get(part, {}).get("digest") != digest(root, part)]


def _results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return of each part how many tests passed and were skipped, and their seconds together and alone."""
    parts: dict[str, dict[str, Any]] = {}
    for command in COMMANDS:
        path = folder / f"{command}.xml"
        for case in ElementTree.parse(path).getroot().iter("testcase") if path.exists() else ():
            module = case.get("classname") or case.get("name") or ""  # a module that is skipped has no class
            if {child.tag for child in case} & {"failure", "error"}:
                raise ValueError(f"{module}::{case.get('name')} did not pass")
            name = APART if command == APART else f"{module.replace('.', '/')}.py"
            part = parts.setdefault(name, {"passed": 0, "skipped": 0, "seconds": 0.0, "alone": 0.0})
            part["skipped" if case.find("skipped") is not None else "passed"] += 1
            for key in ("seconds", "alone") if command == "alone" else ("seconds",):
                part[key] = round(part[key] + float(case.get("time", 0)), 1)
    return parts


def _commit(root: Path) -> dict[str, Any]:
    """Return the commit that the code is of, and whether some of it was not committed; none outside of a checkout."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    changed = git("status", "--porcelain", "--", *PACKAGES, *ALWAYS, f":!{RECORD}")
    return {
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": None if changed is None else bool(changed),
    }


def main(arguments: list[str]) -> int:
    """Do what the first argument says; 1 where the record is not of this code, or cannot be written."""
    from tests.conftest import LONG

    try:
        match arguments:
            case ["begin", folder, *seconds]:
                parts = begin(ROOT, Path(folder), LONG, *map(float, seconds))
                print(f"{len(parts)} of {len(LONG) + 1} parts: {' '.join(parts)}")
                if left := [part for part in outdated(ROOT, LONG) if part not in parts]:
                    took = sum(lasting(read(ROOT), part) for part in left)
                    print(
                        f"not recorded for this code, and no time left for: {' '.join(left)} ({took:.0f} s more)"
                    )
            case ["picked", command, folder] if command in COMMANDS:
                print(*picked(ROOT, Path(folder), command))
            case ["end", folder]:
                parts = end(ROOT, Path(folder))["parts"]
                print(
                    f"{RECORD}: {sum(part['passed'] for part in parts.values())} passed in {len(parts)} parts"
                )
            case ["check"]:
                if (why := check(ROOT, LONG)) is not None:
                    raise ValueError(why)
            case _:
                raise ValueError(f"usage: {__doc__}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
