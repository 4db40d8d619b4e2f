"""What there is of runs: `autotune runs` lists them, `autotune watch` shows one as it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.help import BySubject
from autotune.cli.parameters import OUTPUT, JsonOption, RunArgument, RunsOption
from autotune.exit_codes import ExitCode
from autotune.interruption import Interruption, exit_code
from autotune.terminal import console_for, print_json, say

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=BySubject)
def runs(
    runs: RunsOption = Path("runs"),
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, rich_help_panel=OUTPUT, help="The newest so many.")
    ] = 20,
    json: JsonOption = False,
) -> None:
    """List runs: when, which model and device, in which state, and what won."""
    from autotune.reporting.run_list import run_list, run_table

    found, earlier = run_list(runs, last)
    if json:
        print_json([run.data() for run in found])
        return
    console = console_for(stderr=False)
    if not found:
        say(console, f"there are no runs in {runs}")
        return
    console.print(run_table(found))
    if earlier:
        say(console, f"and {earlier:,} earlier: --last {len(found) + earlier}", "dim")


@app.command(cls=BySubject)
def watch(run: RunArgument = "last", runs: RunsOption = Path("runs")) -> None:
    """Show a run as it goes on, from any other shell; it is not disturbed."""
    from autotune.reporting.document import print_report
    from autotune.reporting.watching import Watching, stopped_line
    from autotune.run.folder import find_run

    paths = find_run(run, runs)
    console = console_for(stderr=False)
    try:
        ended = Watching(paths, console).follow()
    except (Interruption, KeyboardInterrupt) as asked:
        say(console_for(), "\nno longer watched; the run goes on")
        raise typer.Exit(exit_code(asked)) from None
    if ended == "interrupted":
        console_for().print(stopped_line(paths))
        raise typer.Exit(ExitCode.MACHINE)
    print_report(paths, console)
