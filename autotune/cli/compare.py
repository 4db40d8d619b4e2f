"""`autotune sweep compare`: what changed from one night to another, or since the good nights before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.parameters import OUTPUT, Given, JsonOption
from autotune.cli.results_query import ResultsOption
from autotune.terminal import console_for, print_json, print_line, say


def compare(
    given: Given,
    named: Annotated[
        list[str],
        typer.Argument(
            metavar="[BEFORE] NIGHT",
            help="SWEEP/NIGHT, a night's folder, or a sweep's name for its newest. One alone is compared with its good "
            "nights before.",
        ),
    ],
    results: ResultsOption = "results",
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", rich_help_panel=OUTPUT, help="Write JUnit XML, for a CI."),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option("--summary", metavar="FILE", rich_help_panel=OUTPUT, help="Write Markdown."),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option("--webhook", metavar="URL", rich_help_panel=OUTPUT, help="Post what came of it as JSON."),
    ] = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Say what regressed from one night to another, or since the good nights before; exit with 5 if anything did."""
    from autotune.errors import InputError
    from autotune.results.comparison import compare_night, compare_two
    from autotune.results.find import open_store
    from autotune.results.naming import night_named
    from autotune.results.summary import markdown
    from autotune.results.telling import tell
    from autotune.results.thresholds import Thresholds
    from autotune.results.webhook import check_url

    with given.checked():
        thresholds = Thresholds.load(given.options, "options", given.options)
        if len(named) > 2:
            raise InputError(f"{len(named)} nights: name one, or two", about="night")
        if webhook is not None:
            check_url(webhook)
    with open_store(results, create=False) as store:
        *before, now = (night_named(store, name) for name in named)
        if before and before[0].sweep != now.sweep:
            raise InputError(f"{named[0]} and {named[1]} are nights of two sweeps", about="night")
        if before:
            found = compare_two(store, now.sweep, before[0].night, now.night, thresholds)
        else:
            found = compare_night(store, now.sweep, now.night, thresholds)
    for why in tell(found, junit=junit, summary=summary, webhook=webhook):
        say(console_for(), why, "yellow")
    if json:
        print_json(found.model_dump(mode="json"))
    else:
        print_line(markdown(found).rstrip())
    raise typer.Exit(found.exit_code)
