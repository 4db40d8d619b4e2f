"""The record of `make test-long`: on which code its tests passed, when, where, and how long each file took.

    python -m tests.long_record begin FOLDER   before the tests, which leave junit files in FOLDER
    python -m tests.long_record end FOLDER     after them: writes tests/long_record.json
    python -m tests.long_record check          whether the record is of the code as it stands; takes a second

`.ci/run` ends with the check, so what `make test-long` does not run there must have passed elsewhere, on the same code.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from autotune.environment import look_around

ROOT = Path(__file__).parents[1]
RECORD = Path("tests", "long_record.json")
BEGUN = "begun.json"
COVERED = ("autotune", "search_spaces", "benchmarks", "tests")
"""The folders whose code `make test-long` runs."""
NOT_COVERED = ("benchmarks/results",)
ENDINGS = {".py", ".yaml", ".json", ".csv"}
PICKED = ("tests/memory", "tests/numerics")
"""Folders of which `make test-long` picks tests by their name."""


def covered(root: Path, long: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of all that decides what the long tests give, in order; `long` are their files.

    Of documentation that is only what the README has in blocks, whose commands are run and whose output is compared.
    """
    yield "constraints.txt", (root / "constraints.txt").read_bytes()
    yield "README.md", "".join(re.findall(r"```.*?```", (root / "README.md").read_text(), re.DOTALL)).encode()
    for folder in COVERED:
        for path in sorted((root / folder).rglob("*.*")):
            name = path.relative_to(root).as_posix()
            other_test = (
                folder == "tests"
                and path.name.startswith("test_")
                and name not in long
                and not name.startswith(PICKED)
            )
            if (
                path.suffix in ENDINGS
                and not other_test
                and not name.startswith((*NOT_COVERED, RECORD.as_posix()))
            ):
                yield name, path.read_bytes()


def digest(root: Path, long: tuple[str, ...]) -> str:
    """Return one digest of all that is covered, names included."""
    total = hashlib.sha256()
    for name, content in covered(root, long):
        total.update(f"{name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def begin(root: Path, folder: Path, long: tuple[str, ...]) -> None:
    """Note the code and the time before the tests, so that code that changes under them is found."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.xml"):
        old.unlink()
    (folder / BEGUN).write_text(json.dumps({"digest": digest(root, long), "at": time.time()}))


def end(root: Path, folder: Path, long: tuple[str, ...]) -> dict[str, Any]:
    """Write the record. Raises ValueError where the tests were not all well, or the code changed under them."""
    begun = json.loads((folder / BEGUN).read_text())
    if begun["digest"] != digest(root, long):
        raise ValueError("code was changed while the tests ran: run make test-long again")
    files = _results(folder)
    record = {
        **_commit(root),
        "digest": begun["digest"],
        "begun": datetime.fromtimestamp(begun["at"], UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - begun["at"]),
        "environment": look_around().environment(),
        "passed": sum(file["passed"] for file in files.values()),
        "skipped": sum(file["skipped"] for file in files.values()),
        "files": files,
    }
    (root / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return record


def check(root: Path, long: tuple[str, ...]) -> str | None:
    """Return why the record says nothing of the code as it stands, or None."""
    try:
        record = json.loads((root / RECORD).read_text())
    except FileNotFoundError:
        return f"there is no {RECORD}: make test-long writes it"
    if record["digest"] == digest(root, long):
        return None
    return (
        f"{RECORD} is of {record['commit']} ({record['begun']}), and the code that it covers is another now: run "
        "make test-long and commit the record"
    )


def _results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return, for each file of tests, how many passed and were skipped, and their seconds together."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = case.get("classname") or case.get("name", "")  # a module that is skipped has no class
            if {child.tag for child in case} & {"failure", "error"}:
                raise ValueError(f"{name}::{case.get('name')} did not pass")
            file = files.setdefault(name, {"passed": 0, "skipped": 0, "seconds": 0.0})
            file["skipped" if case.find("skipped") is not None else "passed"] += 1
            file["seconds"] = round(file["seconds"] + float(case.get("time", 0)), 1)
    if not files:
        raise ValueError(f"{folder} holds no results")
    return dict(sorted(files.items()))


def _commit(root: Path) -> dict[str, Any]:
    """Return the commit that the code is of, and whether some of it was not committed; none outside of a checkout."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    changed = git("status", "--porcelain", "--", *COVERED, f":!{RECORD}")
    return {
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": None if changed is None else bool(changed),
    }


def main(arguments: list[str]) -> int:
    """Do what the first argument says; 1 where the record is not of this code, or cannot be written."""
    from tests.conftest import LONG

    try:
        match arguments:
            case ["begin", folder]:
                begin(ROOT, Path(folder), LONG)
            case ["end", folder]:
                record = end(ROOT, Path(folder), LONG)
                print(f"{RECORD}: {record['passed']} passed in {record['seconds']} s")
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
