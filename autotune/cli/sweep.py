"""`autotune sweep`: many runs from one file, night after night."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.compare import compare
from autotune.cli.help import BySubject
from autotune.cli.parameters import LENIENT, OUTPUT, JsonOption, RunsOption, options_of, takes
from autotune.errors import InputError, JournalError, ProbeError, StoreError
from autotune.exit_codes import ExitCode
from autotune.interruption import Interruption
from autotune.results.thresholds import Thresholds
from autotune.terminal import console_for, print_error, print_json, print_line, say

if TYPE_CHECKING:
    from autotune.results.row import CellState
    from autotune.sweep.asked import AskedSweep
    from autotune.sweep.log import NightLog
    from autotune.sweep.night import NightPaths
    from autotune.sweep.start import Night

CODES: dict[CellState, ExitCode] = {
    "proven": ExitCode.OK, "nothing_fits": ExitCode.NOTHING_PROVEN, "nothing_trained": ExitCode.NOTHING_PROVEN,
    "nothing_proven": ExitCode.NOTHING_PROVEN, "model_error": ExitCode.MODEL, "bad_input": ExitCode.INPUT,
    "failed": ExitCode.MACHINE, "interrupted": ExitCode.MACHINE,
}  # fmt: skip
"""The exit code that each state of a cell would have as a run by itself; a night's is the worst."""

app = typer.Typer(rich_markup_mode=None)
sweep_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(sweep_app, name="sweep")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The sweep file.")]
NightArgument = Annotated[
    str,
    typer.Argument(
        metavar="NIGHT",
        help="A night's folder, SWEEP/NIGHT, a sweep's name for its newest, or last for the newest.",
    ),
]


@sweep_app.command(cls=BySubject)
def plan(file: FileArgument, runs: RunsOption = Path("runs"), json: JsonOption = False) -> None:
    """Show the cells of a sweep, what each is expected to take, and what that costs."""
    from autotune.sweep.tables import plan_view

    planned = _asked(file).plan(runs)
    if json:
        print_json(planned.model_dump(mode="json"))
    else:
        console_for(stderr=False).print(plan_view(planned))


sweep_app.command("compare", cls=BySubject, context_settings=LENIENT)(takes(*options_of(Thresholds))(compare))


@sweep_app.command(cls=BySubject)
def run(file: FileArgument, runs: RunsOption = Path("runs"), json: JsonOption = False) -> None:
    """Run a night of a sweep: every cell, as many at a time as there are devices."""
    from autotune.sweep.start import begin_night

    asked = _asked(file)
    _night(asked, json, lambda log: begin_night(asked, runs, log))


@sweep_app.command(cls=BySubject)
def resume(night: NightArgument = "last", runs: RunsOption = Path("runs"), json: JsonOption = False) -> None:
    """Go on with a night that was interrupted; cells that this machine failed are tried again."""
    from autotune.sweep.night import find_night
    from autotune.sweep.start import asked_before, run_night

    paths = find_night(night, runs)
    asked = asked_before(paths)
    _night(asked, json, lambda log: run_night(asked, paths, log))


@sweep_app.command(cls=BySubject)
def status(night: NightArgument = "last", runs: RunsOption = Path("runs"), json: JsonOption = False) -> None:
    """Say how far a night is, whoever works on it."""
    from autotune.sweep.night import find_night
    from autotune.sweep.progress import progress_of
    from autotune.sweep.tables import progress_view

    progress = progress_of(find_night(night, runs))
    if json:
        print_json(progress.model_dump(mode="json"))
    else:
        console_for(stderr=False).print(progress_view(progress))


@sweep_app.command(cls=BySubject)
def report(
    night: NightArgument = "last",
    html: Annotated[
        bool,
        typer.Option(
            "--html", rich_help_panel=OUTPUT,
            help="Write the night's page, those of its runs, and the index over nights, and print their paths.",
        ),
    ] = False,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Show what came of the cells of a night, beside the night before."""
    from autotune.sweep.night import find_night

    paths = find_night(night, runs)
    if html:
        for file in _pages(paths):
            print_line(str(file))
    if json or not html:
        _report(paths, json)


def _pages(paths: NightPaths) -> tuple[Path, Path]:
    from autotune.sweep.page import write_pages
    from autotune.sweep.start import cells_before

    return write_pages(paths, cells_before(paths))


def _night(asked: AskedSweep, json: bool, work: Callable[[NightLog], Night]) -> None:
    """Run a night, or what is left of one, then show what came of it."""
    from autotune.commands import command
    from autotune.exit_codes import worst
    from autotune.sweep.log import NightLog

    console = console_for()
    log = NightLog(console, len(asked.cells))
    try:
        paths, record = work(log)
    except (Interruption, KeyboardInterrupt) as ended:
        if log.paths is not None:
            ended.add_note(f"Go on with: {command('sweep', 'resume', log.paths.root)}")
        raise
    except (JournalError, ProbeError, StoreError) as error:
        if log.paths is not None:
            again = command("sweep", "resume", log.paths.root)
            error.args = (f"{error}. When that is mended, go on with: {again}",)
        raise
    _report(paths, json)
    try:
        say(console, f"page: {_pages(paths)[0]}", "dim")
    except InputError as error:  # a page can be written again, by `sweep report --html`
        print_error(error)
    if record.compared is not None and record.compared.regressions:
        raise typer.Exit(ExitCode.REGRESSION)
    raise typer.Exit(worst(CODES[entry.state] for entry in record.ended.values()))


def _report(paths: NightPaths, json: bool) -> None:
    from autotune.sweep.journal import read_night
    from autotune.sweep.progress import progress_of, results_of_cells, speeds_before
    from autotune.sweep.tables import changes_view, progress_view, results_view

    progress, record = progress_of(paths), read_night(paths)
    results = results_of_cells(record, speeds_before(paths)) if progress.cells else ()
    changes = () if record.compared is None else record.compared.changes
    if json:
        cells = [one.model_dump(mode="json") for one in results]
        changed = [change.model_dump(mode="json") for change in changes]
        print_json({**progress.model_dump(mode="json"), "results": cells, "changes": changed})
        return
    console = console_for(stderr=False)
    console.print(progress_view(progress))
    if results:
        console.print()
        console.print(results_view(results))
    if changes:
        console.print()
        console.print(changes_view(changes))


def _asked(file: Path) -> AskedSweep:
    from autotune.sweep.asked import AskedSweep

    return AskedSweep.read(file)
