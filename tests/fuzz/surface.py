"""One command of autotune, run in this process as a shell would run it, with what would start a worker made up.

Only the seams are replaced: what finds an executor, what traces, and what asks the hub. The rest is the program.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

from typer.main import get_command

from autotune.cli import main
from autotune.errors import InputError, NothingFits
from autotune.exit_codes import BY_VERB, ExitCode
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.tracing.client import Trace
from autotune.user_files import parse_yaml
from tests.fakes.executor import ArithmeticExecutor

FILES = Path(__file__).parents[2] / "search_spaces"
SECONDS = 30
"""Of the processor, after which a command counts as one without an end."""
WAITING = 600
"""Seconds after which a command counts as one that waits for ever; the machine may be busy."""
MEMORY = 2 * 2**30
"""Bytes of address space that a command may take beyond what the process has."""
MOST_LINES = 400
MOST_BYTES = 2**20
"""Of standard error; a whole run prints a line for each of its probes."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class MadeTracer:
    """Hands out timelines of a few GiB, without a worker."""

    def trace(self, request, folder, *, timeout, on_progress=None):
        device = Arithmetic(0, 5 * 2**30, 8 * 2**30, 2**30, 2**28)
        found = {}
        for candidate in (request.candidate, *request.also):
            made = timeline(device, candidate)
            made.facts.update(tokens_per_sample=request.seq_len, seq_len=request.seq_len, seconds=0.5)
            found[candidate] = Trace(made)
        return found


@contextmanager
def seams() -> Iterator[None]:
    """Replace what launches, traces, and asks the network; no test waits for a disk either.

    A run that begins ends at once, with an error of its own; one that is resumed goes on from its journal. The shipped
    YAML files are read as JSON, and the parser of the command line is built once: each takes longer than a command.
    """
    from autotune.devices.find import find
    from autotune.run.loop import tune as go_on

    def find_executor(spec, tracer, gpus=1, nodes=1, launcher=None, command=None):
        find(spec)
        return ArithmeticExecutor(Arithmetic(budget=1000))

    def tune(spec, paths, *rest):
        if paths.journal.exists():
            return go_on(spec, paths, *rest)
        raise NothingFits("nothing was tried")

    def fetch_config(name):
        raise InputError(f"model {name} is not on this machine, and there is no network")

    with (
        patch("autotune.executors.find.find_executor", find_executor),
        patch("autotune.run.verify.find_executor", find_executor),
        patch("autotune.executors.find.find_tracer", lambda *_, **__: MadeTracer()),
        patch("autotune.tracing.client.LocalTracer", MadeTracer),
        patch("autotune.run.loop.tune", tune),
        patch("autotune.assets.shipped_text", _as_json),
        patch("typer.main.get_command", cache(get_command)),
        patch("autotune.models.hub.fetch_config", fetch_config),
        patch("os.fsync", lambda handle: None),
    ):
        yield


@cache
def _as_json(stem: str) -> str:
    return json.dumps(parse_yaml((FILES / f"{stem}.yaml").read_text("utf-8"), stem))


class TooSlow(BaseException):
    """The alarm."""


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    arguments: tuple[str, ...]
    code: int | None
    """None where it ended in an exception that nobody caught."""
    stdout: str
    stderr: str
    trace: str = ""


def command(arguments: list[str], folder: Path) -> Ended:
    """Run one command in a folder, with standard output and error as files."""
    streams = sys.stdout, sys.stderr, Path.cwd()
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdout = written = io.TextIOWrapper(out, encoding="utf-8")
    sys.stderr = told = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace")
    os.chdir(folder)
    code, trace = None, ""
    try:
        with _limits():
            main(list(arguments))
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001  whatever gets out of the program is what is looked for
        trace = traceback.format_exc()
    finally:
        for stream in (written, told):
            stream.flush()
        sys.stdout, sys.stderr = streams[:2]
        os.chdir(streams[2])
    said = out.getvalue().decode("utf-8"), err.getvalue().decode("utf-8")
    return Ended(tuple(arguments), code, *said, trace)


def complaint(ended: Ended) -> str | None:
    """Return what is wrong with how a command ended, or None."""
    if ended.code is None:
        return f"ended in an exception:\n{ended.trace}"
    verb = next((argument for argument in ended.arguments if argument in BY_VERB), None)
    documented = BY_VERB[verb] if verb else {ExitCode.OK, ExitCode.INPUT}
    if ended.code not in documented:
        return f"exit code {ended.code} is not documented for {verb}: {ended.stderr[-500:]}"
    if "Traceback (most recent call last)" in ended.stderr:
        return f"printed a traceback:\n{ended.stderr[-3000:]}"
    if ended.code and not ended.stderr.strip():
        return f"exit code {ended.code} without a word"
    if ended.stderr.count("\n") > MOST_LINES or len(ended.stderr) > MOST_BYTES:
        return f"{ended.stderr.count(chr(10))} lines, {len(ended.stderr)} characters: {ended.stderr[:500]}"
    if found := _CONTROL.search(ended.stdout + ended.stderr):
        return f"printed a control character: {found[0]!r}"
    return None


@contextmanager
def _limits() -> Iterator[None]:
    """Bound time and memory while a command runs."""

    def ring(*_: object) -> None:
        raise TooSlow("no end")

    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    own_clock = "PYTEST_CURRENT_TEST" not in os.environ  # whose plugin has the other clock, and waits less
    handlers = [
        (number, signal.signal(number, ring)) for number in (signal.SIGPROF, signal.SIGALRM)[: 1 + own_clock]
    ]
    signals = [
        (number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    if own_clock:
        signal.setitimer(signal.ITIMER_REAL, WAITING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if own_clock:
            signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        for number, own in (*handlers, *signals):
            signal.signal(number, own)


if __name__ == "__main__":  # a process of its own, for the examples that are run as real commands
    with seams():
        main(sys.argv[1:])
