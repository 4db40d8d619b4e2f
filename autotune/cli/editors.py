"""What shells and editors complete by: `autotune completion` and `autotune schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.completion import SHELLS, script
from autotune.cli.help import BySubject
from autotune.terminal import print_line

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=BySubject)
def completion(
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help=", ".join(SHELLS), autocompletion=lambda: list(SHELLS))
    ],
) -> None:
    """Print the script that completes commands in a shell."""
    print_line(script(shell))


def _names() -> list[str]:
    from autotune.schemas import SCHEMAS

    return list(SCHEMAS)


@app.command(cls=BySubject)
def schema(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Which file's; none lists them.", autocompletion=_names),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Files to join with it: it is written beside each, which names it in its first line.",
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of a file, or join a file with it, for editors."""
    from autotune.json_schema import schema_text
    from autotune.schemas import SCHEMAS, attach
    from autotune.schemas import schema as find

    if name is None:
        for known, (what, _) in SCHEMAS.items():
            print_line(f"{known}: {what}")
        return
    found = find(name)
    if not files:
        print_line(schema_text(found).rstrip())
    for file in files or []:
        print_line(str(attach(name, file)))
