"""What there is: `autotune doctor`, `autotune models` and `autotune spaces`."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.help import BySubject
from autotune.cli.parameters import JsonOption
from autotune.terminal import console_for, print_item, print_json, print_line

app = typer.Typer(rich_markup_mode=None)
spaces_app = typer.Typer(rich_markup_mode=None, no_args_is_help=False)
app.add_typer(spaces_app, name="spaces", invoke_without_command=True)


@app.command(cls=BySubject)
def doctor(json: JsonOption = False) -> None:
    """Say what this machine offers, and what is missing."""
    from autotune.doctor import diagnose

    findings = diagnose()
    if json:
        print_json([finding.model_dump() for finding in findings])
        return
    from rich.text import Text

    marks = {"ok": ("ok", "green"), "warning": ("!!", "yellow"), "missing": ("--", "red")}
    console = console_for(stderr=False)
    for finding in findings:
        print_item(
            console, marks[finding.state], Text.assemble((finding.subject, "bold"), f": {finding.text}")
        )


@app.command(cls=BySubject)
def models(json: JsonOption = False) -> None:
    """List the models that resolve by name without a network."""
    from autotune.models.catalog import list_presets

    presets = list_presets()
    if json:
        print_json([preset.model_dump(exclude={"config"}) for preset in presets])
        return
    from autotune.reporting.columns import Column, FittingTable

    table = FittingTable(
        [
            Column("name", [preset.name for preset in presets]),
            Column("family", [preset.family for preset in presets], leaves=1),
            Column("parameters", [f"{preset.parameters:,}" for preset in presets], justify="right"),
            Column("longest\nsequence", [f"{preset.longest:,}" for preset in presets], justify="right"),
            Column("on the hub", [preset.hub or "-" for preset in presets], leaves=2),
        ]
    )
    console = console_for(stderr=False)
    console.print(table)
    console.print("Any config.json, hub name or module:function of your own works as well.")


@spaces_app.callback()
def spaces(context: typer.Context, json: JsonOption = False) -> None:
    """List the search spaces that ship with autotune."""
    if context.invoked_subcommand is not None:
        return
    from autotune.search.shipped import load_space, shipped_spaces

    found = [load_space(name) for name in shipped_spaces()]
    if json:
        print_json([space.model_dump(mode="json") for space in found])
        return
    from rich.text import Text

    console = console_for(stderr=False)
    for space in found:
        print_item(console, ("", ""), Text.assemble((space.name, "bold"), f": {space.description}"))
        for axis, values in space.axes.items():
            print_item(console, ("   ", ""), Text(f"{axis}: {', '.join(str(value) for value in values)}"))


@spaces_app.command("draw", cls=BySubject)
def draw(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="A shipped name or a YAML file.")] = "default",
) -> None:
    """Print the decision graph of a search space as Mermaid."""
    from autotune.search.shipped import load_space

    print_line(load_space(space).graph.mermaid().rstrip())
