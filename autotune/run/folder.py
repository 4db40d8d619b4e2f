"""The folder of a run: made once, found again by name or path."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from autotune import __version__
from autotune.commands import command
from autotune.errors import InputError, JournalError, RunEdited, nearest, unwritable
from autotune.json_schema import reference, schema_name, written_text
from autotune.models.function import code_digest
from autotune.printable import quoted
from autotune.probe.folder import write_atomically
from autotune.run.events import Asked, Started
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.record import Record
from autotune.run.sealed_lines import LARGEST, OtherVersion, another_version, version_in
from autotune.script.command import digests
from autotune.specs import ModelSpec, RunSpec
from autotune.user_files import parse_yaml, read_bytes, read_text, require_kind, user_path

RUN_TITLE = "spec.yaml of a run of autotune"
CHANGES = 5
"""Edited values of a spec that are told one by one."""
_NONE = object()
SLUG = 60
"""Characters of a model's name, and of a device's, in the name of a run's folder."""


def create_run(spec: RunSpec, parent: Path) -> RunPaths:
    """Make a new run folder and write its spec. Raises InputError when the folder cannot be made.

    Its name begins with the time in UTC, so that names sort by age whenever clocks change for summer or winter.
    """
    parent = user_path(parent, "--runs")
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{_slug(spec.model.name)}-{_slug(str(spec.device))}"
    try:
        paths = _fresh(parent, stem)
        paths.probes.mkdir()
        _write_spec(paths, spec)
    except OSError as error:
        raise unwritable(f"no run folder can be made in {parent}", error, "runs") from error
    return paths


def run_at(root: Path, spec: RunSpec) -> tuple[RunPaths, RunSpec]:
    """Make a run folder of this name, unless it is there; return it with what its run was asked for, which stays.

    Raises InputError when the folder cannot be made, or holds a spec that was edited.
    """
    paths = RunPaths(root)
    if os.path.exists(paths.spec):
        return paths, load_spec(paths)
    try:
        paths.probes.mkdir(parents=True, exist_ok=True)
        _write_spec(paths, spec)
    except OSError as error:
        raise unwritable(f"no run folder can be made at {root}", error) from error
    return paths, spec


@contextmanager
def new_run(spec: RunSpec, parent: Path) -> Iterator[RunPaths]:
    """Make a run folder as `create_run`; what is refused before anything was probed leaves none behind.

    So `last` stays the newest run that came to something, and one that failed or was interrupted can be looked at.
    """
    parent = user_path(parent, "--runs")
    first = not os.path.exists(parent)
    paths = create_run(spec, parent)
    try:
        yield paths
    except InputError:
        if not _was_probed(paths):
            shutil.rmtree(paths.root, ignore_errors=True)
            if first:
                with contextlib.suppress(OSError):  # another run was made there meanwhile
                    parent.rmdir()
        raise


def _was_probed(paths: RunPaths) -> bool:
    if not paths.journal.exists():
        return False
    return any(isinstance(entry, Started) for entry in read_record(paths.journal).entries)


_OF_A_RUN = ("spec.yaml", "journal.jsonl")
"""Files by which a folder is known to be a run's: what is asked for is in both."""


def run_folders(parent: Path) -> list[Path]:
    """Return the folders of the runs there, the oldest first."""
    return sorted({file.parent for name in _OF_A_RUN for file in parent.glob(f"*/{name}")})


def find_run(name: str, parent: Path) -> RunPaths:
    """Return a run by path, or by name under `parent`; `last` is the newest there. Raises InputError."""
    parent, path = user_path(parent, "--runs"), user_path(name, "the run")
    runs = run_folders(parent)
    if name == "last" and runs:
        return RunPaths(runs[-1])
    for root in (path, parent / name):
        if any(os.path.lexists(root / file) for file in _OF_A_RUN):
            return RunPaths(root)
    if os.path.isdir(path):
        raise InputError(
            f"{name} is not a run of autotune: it has neither spec.yaml nor journal.jsonl", about="run"
        )
    known = [run.name for run in runs]
    hint = f"; {nearest(name, known)}" if known else f"; there are no runs in {parent}"
    raise InputError(f"there is no run {quoted(name)}{hint}", about="run")


def find_best(name: str, parent: Path) -> Path:
    """Return a `best.yaml`: by its own path, or of a run as `find_run` finds it.

    Raises InputError where there is none; whether a file can be read is for its reader to see.
    """
    path = user_path(name, "the best.yaml")
    if os.path.isfile(path) or (path.suffix in {".yaml", ".yml"} and not os.path.isdir(path)):
        return path
    if os.path.isfile(path / "best.yaml"):
        return path / "best.yaml"
    best = find_run(name, parent).best
    if not os.path.isfile(best):
        raise InputError(
            f"{best.parent} has no best.yaml: it has no winner, or is not finished; see: "
            f"{command('report', best.parent)}"
        )
    return best


def load_spec(paths: RunPaths) -> RunSpec:
    """Read what a run was asked for. Raises InputError when the file is unreadable, not a spec, or was edited.

    OtherVersion is raised where another version wrote the run and this one cannot read it.
    """
    source = str(paths.spec)
    record = read_record(paths.journal) if paths.journal.exists() else Record.of(())
    if record.asked is not None and not os.path.lexists(paths.spec):
        return spec_asked(record.asked, paths)
    try:
        data = parse_yaml(read_text(paths.spec), source)
    except InputError as error:
        if record.asked is None:
            raise
        raise JournalError(
            f"{error}. The journal has what the run was asked for: remove the file, and it is taken from there",
            "damaged",
        ) from error
    try:
        require_kind(data, "the spec.yaml of a run", source)
        spec = RunSpec.load(data, source)
    except InputError:
        if record.asked is not None:
            spec_asked(record.asked, paths)  # what no edit of the file explains
        raise
    require_unedited(spec, record, paths)
    return spec


def require_journal(paths: RunPaths, record: Record) -> None:
    """Raise JournalError where a journal is empty beside what probes of its run have left: the record was lost."""
    if not record.entries and (os.path.lexists(paths.best) or any(paths.probes.glob("*/result.json"))):
        raise JournalError(
            f"{paths.journal} is empty, though probes of this run were recorded: restore it from a copy, or start a "
            "new run; the folder is left as it is",
            "damaged",
        )


def spec_asked(asked: Asked, paths: RunPaths) -> RunSpec:
    """Return the spec that a journal's first line holds. Raises OtherVersion: whoever wrote that line could read it."""
    try:
        return RunSpec.load(asked.spec, paths.journal.name)
    except InputError as error:
        version = version_in(read_bytes(paths.journal, most=LARGEST).splitlines())
        keys = ", ".join(error.about[:CHANGES])
        raise OtherVersion(
            f"{paths.root}: {another_version(version)} wrote this run, and version {__version__} does not read what "
            f"it was asked for{f' (the keys {keys})' if keys else ''}. Nothing was changed; install the version that "
            "wrote it, or start a new run with `autotune run`",
            version,
            about="run",
        ) from error


def require_unedited(spec: RunSpec, record: Record, paths: RunPaths) -> None:
    """Raise RunEdited where a run was asked for something else when it began: what was measured is of that.

    Raises OtherVersion where this version cannot read what that was.
    """
    if record.asked is None or (now := Asked.of(spec)).digest == record.asked.digest:
        return
    if spec_asked(record.asked, paths) == spec:  # written before a field was there that has its default
        return
    before, after = _leaves(record.asked.spec), _leaves(now.spec)
    changed = [name for name in {**before, **after} if before.get(name, _NONE) != after.get(name, _NONE)]
    told = [f"{name} is {_told(after, name)} and was {_told(before, name)}" for name in changed[:CHANGES]]
    more = f"; and {len(changed) - CHANGES} more" if len(changed) > CHANGES else ""
    raise RunEdited(
        f"{paths.spec} was edited after the run began ({'; '.join(told) or 'its first journal line was'}{more}). What "
        "the run has measured is of what it was asked for then, so it is not continued: put the file back as it was, "
        "or start a new run with `autotune run`",
        changed,
    )


def require_same_code(model: ModelSpec) -> None:
    """Raise RunEdited where the file of the user's function was edited after the run began."""
    if (own := model.command) is not None:
        now = digests(tuple(own.code), Path(own.folder))
        edited = [name for name, digest in own.code.items() if now.get(name) != digest]
        if edited:
            raise RunEdited(
                f"{', '.join(edited)}, which the command names, was edited (or moved) after the run began. What the "
                "run has measured is of it as it was then, so it is not continued: put it back as it was, or start a "
                "new run with `autotune run`"
            )
    if model.code is None or code_digest(model.name, model.path) == model.code:
        return
    raise RunEdited(
        f"the file that defines {model.name} was edited (or moved) after the run began. What the run has measured is "
        "of the model as it was then, so it is not continued: put the file back as it was, or start a new run with "
        "`autotune run`"
    )


def _leaves(value: object, name: str = "") -> dict[str, object]:
    """Return the values of nested keys by their dotted names."""
    if isinstance(value, dict) and value:
        parts = (_leaves(part, f"{name}.{key}" if name else str(key)) for key, part in value.items())
        return {key: leaf for part in parts for key, leaf in part.items()}
    return {name: value}


def _told(leaves: dict[str, object], name: str) -> str:
    return quoted(leaves[name]) if name in leaves else "not there"


def dump_spec(spec: RunSpec) -> str:
    """Return the spec as YAML; `load_spec` reads it back equal."""
    text = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 110
    yaml.dump(spec.model_dump(mode="json"), text)
    return (
        reference("run") + "# What this run was asked for. A resumed run reads it again.\n" + text.getvalue()
    )


def _write_spec(paths: RunPaths, spec: RunSpec) -> None:
    """Write what was asked for, with its schema beside it, so that an editor tells what each key is."""
    write_atomically(paths.root / schema_name("run"), written_text(RunSpec, RUN_TITLE))
    write_atomically(paths.spec, dump_spec(spec))


def _fresh(parent: Path, stem: str) -> RunPaths:
    """Make a folder that did not exist, so that runs started in the same second do not meet."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        root = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            root.mkdir()
        except FileExistsError:
            continue
        return RunPaths(root)
    raise AssertionError("a thousand runs in one second")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name.split("/")[-1]).strip("-")[:SLUG] or "model"
