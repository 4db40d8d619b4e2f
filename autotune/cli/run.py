"""`autotune run` and `autotune resume`: the loop under a live table, then its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.help import BySubject
from autotune.cli.parameters import (
    LENIENT,
    OUTPUT,
    Given,
    JsonOption,
    RunArgument,
    RunsOption,
    options_of,
    takes,
)  # fmt: skip
from autotune.interruption import Interruption
from autotune.options import RunOptions
from autotune.techniques.consent import NAMES
from autotune.terminal import console_for, print_json

if TYPE_CHECKING:
    from autotune.run.paths import RunPaths
    from autotune.specs import RunSpec

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=BySubject, context_settings=LENIENT)
@takes(*options_of(RunOptions, {"allow": NAMES}))
def run(
    given: Given,
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=OUTPUT, help="YAML file that holds any of these options."
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Find, prove and emit the fastest configuration that fits."""
    from autotune.devices.find import check_device
    from autotune.run.folder import new_run
    from autotune.run.spec import read_options, to_spec

    def resolve(options: RunOptions) -> RunSpec:
        return to_spec(options, check_device, Path.cwd())

    with given.checked():
        resolved = resolve(read_options(given.options, spec, resolve))
    with new_run(resolved, runs) as paths:
        _tune(resolved, paths, json)


@app.command(cls=BySubject)
def resume(
    run: RunArgument = "last",
    retry_lost: Annotated[
        bool, typer.Option("--retry-lost", help="Try again what something outside ended each time.")
    ] = False,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted, from its journal."""
    from autotune.run.folder import find_run, load_spec

    paths = find_run(run, runs)
    _tune(load_spec(paths), paths, json, retry_lost)


def _tune(spec: RunSpec, paths: RunPaths, json: bool, retry_lost: bool = False) -> None:
    """Run the loop under a live table, then show the result."""
    from autotune.commands import command
    from autotune.errors import JournalError, NothingFits, NothingProven, NothingTrained, ProbeError
    from autotune.executors.session import executing
    from autotune.reporting.document import document, print_result
    from autotune.reporting.live import Terminal
    from autotune.run.loop import tune

    console = console_for()
    try:
        with executing(spec, paths.root) as (executor, tracer):
            console.print(f"run {paths.root}", style="dim")
            with Terminal(console, spec) as callbacks:
                best = tune(spec, paths, executor, callbacks, tracer, retry_lost)
    except (Interruption, KeyboardInterrupt) as asked:
        asked.add_note(f"Go on with: {command('resume', paths.root)}")
        raise
    except (NothingFits, NothingTrained, NothingProven):
        if json:
            print_json(document(paths))
        raise
    except (JournalError, ProbeError) as error:
        error.args = (f"{error}. When that is mended, go on with: {command('resume', paths.root)}",)
        raise
    if json:
        print_json(document(paths))
    print_result(paths, best, console)
