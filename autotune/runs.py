"""The folder of a run: made once, found again by name or path."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML

from autotune.commands import command
from autotune.errors import InputError, nearest
from autotune.journal import read_record
from autotune.paths import RunPaths
from autotune.probe.folder import write_atomically
from autotune.record import Started
from autotune.space import parse_yaml
from autotune.specs import RunSpec


def create_run(spec: RunSpec, parent: Path) -> RunPaths:
    """Make a new run folder and write its spec. Raises InputError when the folder cannot be made."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{_slug(spec.model.name)}-{_slug(str(spec.device))}"
    try:
        paths = _fresh(parent, stem)
        paths.probes.mkdir()
        write_atomically(paths.spec, dump_spec(spec))
    except OSError as error:
        raise InputError(f"no run folder can be made in {parent}: {error.strerror or error}") from error
    return paths


@contextmanager
def new_run(spec: RunSpec, parent: Path) -> Iterator[RunPaths]:
    """Make a run folder as `create_run`; what is refused before anything was probed leaves none behind.

    So `last` stays the newest run that came to something, and one that failed or was interrupted can be looked at.
    """
    first = not parent.exists()
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


def find_run(name: str, parent: Path) -> RunPaths:
    """Return a run by path, or by name under `parent`; `last` is the newest there. Raises InputError."""
    runs = sorted(path.parent for path in parent.glob("*/spec.yaml"))
    if name == "last" and runs:
        return RunPaths(runs[-1])
    for root in (Path(name).expanduser(), parent / name):
        if (root / "spec.yaml").is_file():
            return RunPaths(root)
    if Path(name).expanduser().is_dir():
        raise InputError(f"{name} is not a run of autotune: it has no spec.yaml")
    known = [path.name for path in runs]
    hint = f"; {nearest(name, known)}" if known else f"; there are no runs in {parent}"
    raise InputError(f"there is no run {name!r}{hint}")


def find_best(name: str, parent: Path) -> Path:
    """Return a `best.yaml`: by its own path, or of a run as `find_run` finds it.

    Raises InputError where there is none; whether a file can be read is for its reader to see.
    """
    path = Path(name).expanduser()
    if path.is_file() or (path.suffix in {".yaml", ".yml"} and not path.is_dir()):
        return path
    if (path / "best.yaml").is_file():
        return path / "best.yaml"
    best = find_run(name, parent).best
    if not best.is_file():
        raise InputError(
            f"{best.parent} has no best.yaml: it has no winner, or is not finished; see: "
            f"{command('report', best.parent)}"
        )
    return best


def load_spec(paths: RunPaths) -> RunSpec:
    """Read what a run was asked for. Raises InputError when the file is unreadable or not a spec."""
    try:
        text = paths.spec.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{paths.spec} cannot be read: {error}") from None
    return RunSpec.load(parse_yaml(text, str(paths.spec)), str(paths.spec))


def dump_spec(spec: RunSpec) -> str:
    """Return the spec as YAML; `load_spec` reads it back equal."""
    text = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 110
    yaml.dump(spec.model_dump(mode="json"), text)
    return "# What this run was asked for. A resumed run reads it again.\n" + text.getvalue()


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
    return re.sub(r"[^A-Za-z0-9.]+", "-", name.split("/")[-1]).strip("-") or "model"
