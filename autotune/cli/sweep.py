"""`autotune sweep`: many runs from one file, night after night."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.compare import compare
from autotune.cli.help import BySubject
from autotune.cli.parameters import LENIENT, JsonOption, RunsOption, options_of, takes
from autotune.results.thresholds import Thresholds
from autotune.terminal import console_for, print_json

if TYPE_CHECKING:
    from autotune.sweep.asked import AskedSweep

app = typer.Typer(rich_markup_mode=None)
sweep_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(sweep_app, name="sweep")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The sweep file.")]


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


def _asked(file: Path) -> AskedSweep:
    from autotune.sweep.asked import AskedSweep

    return AskedSweep.read(file)
