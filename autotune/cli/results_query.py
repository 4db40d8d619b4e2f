"""`autotune results`: what all trials of all nights came to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.help import BySubject
from autotune.cli.parameters import LENIENT, OUTPUT, Given, options_of, takes
from autotune.results.store import Query
from autotune.terminal import console_for, print_line, say

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(rich_markup_mode=None)
results_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(results_app, name="results")

SHOWN = 40
"""Rows of the table on a terminal, unless --limit says otherwise."""

ResultsOption = Annotated[
    str,
    typer.Option(
        "--results", metavar="PLACE", rich_help_panel=OUTPUT,
        help="Where sweeps keep their results: a folder, or postgresql://...",
    ),
]  # fmt: skip


@results_app.callback()
def results() -> None:
    """Ask what all trials of all nights of sweeps came to."""


@results_app.command(cls=BySubject, context_settings=LENIENT)
@takes(*options_of(Query))
def query(
    given: Given,
    results: ResultsOption = "results",
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", rich_help_panel=OUTPUT,
            help="table, csv, json or parquet; by default a table, or what the file's name says.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", rich_help_panel=OUTPUT, help="Write to a file instead."),
    ] = None,
) -> None:  # fmt: skip
    """Show trials, or write them to a file."""
    from autotune.errors import InputError, all_of
    from autotune.results.export import Format, format_of, write_csv, write_file, write_json
    from autotune.results.find import open_store

    def written_as() -> Format | None:
        if format not in {None, "table", "csv", "json", "parquet"}:
            raise InputError(f"--format: {format} is none; write table, csv, json or parquet", about="format")
        if out is None and format == "parquet":
            raise InputError("--format parquet needs a file: --out FILE", about="out")
        return None if out is None else format_of(out, format)

    with given.checked():
        asked, kind = all_of(lambda: Query.load(given.options, "options", given.options), written_as)
    with open_store(results, create=False) as store:
        if out is not None and kind is not None:
            count = write_file(store.query(asked), out, kind)
            say(console_for(), f"{count:,} trials", "dim")
            print_line(str(out))
        elif format == "csv":
            write_csv(store.query(asked), sys.stdout)
        elif format == "json":
            write_json(store.query(asked), sys.stdout)
        else:
            shown = asked.model_copy(update={"limit": asked.limit or SHOWN})
            _print(list(store.query(shown)), store.count())


def _print(rows: Sequence[dict[str, Any]], in_all: int) -> None:
    from autotune.reporting.columns import Column, FittingTable
    from autotune.units import format_bytes, format_count

    def texts(name: str) -> list[str]:
        return ["" if row[name] is None else str(row[name]) for row in rows]

    table = FittingTable(
        [
            Column("night", texts("night"), leaves=1),
            Column("cell", texts("cell")),
            Column("kind", texts("kind"), leaves=4),
            Column("", texts("number"), leaves=5, justify="right"),
            Column("candidate", texts("title"), least=20),
            Column("came to", texts("outcome")),
            Column("peak", ["" if row["peak"] is None else format_bytes(row["peak"]) for row in rows], justify="right"),
            Column(
                "tokens/s",
                ["" if (speed := row["tokens_per_second"]) is None else format_count(round(speed)) for row in rows],
                justify="right",
            ),
            Column("device", texts("hardware"), leaves=3, least=12),
            Column("torch", texts("torch"), leaves=2),
        ]
    )  # fmt: skip
    console = console_for(stderr=False)
    if rows:
        console.print(table)
    say(console, f"{len(rows):,} of {in_all:,} trials", "dim")
