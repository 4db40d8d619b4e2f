"""`autotune estimate`: memory and speed, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.help import BySubject
from autotune.cli.parameters import LENIENT, OUTPUT, Given, JsonOption, option_of, options_of, takes
from autotune.options import EstimateOptions
from autotune.techniques.families import THEMES, axes_of
from autotune.terminal import console_for, print_json

app = typer.Typer(rich_markup_mode=None)

FOLLOWING = {"sharding": "by --gpus", "sequences": "by --lengths"}
"""What the default of an axis follows where it is no value of its own."""

AXES = [
    option_of(axis, theme, FOLLOWING.get(axis.name, ""))
    for theme, families in THEMES.items()
    for family in families
    for axis in axes_of(family)
]


@app.command(cls=BySubject, context_settings=LENIENT)
@takes(*options_of(EstimateOptions), *AXES)
def estimate(
    given: Given,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Draw to a .png or .html file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Predict memory and speed of one candidate, or of every rung, on GPUs that need not be there."""
    from autotune.errors import NotPriced, all_of
    from autotune.estimation.request import EstimateRequest
    from autotune.estimation.request import estimate as answer_to
    from autotune.estimation.tables import estimates_document, print_estimates
    from autotune.tracing.client import LocalTracer

    def drawable() -> None:
        if plot is not None:
            from autotune.estimation.plot import check_plot

            check_plot(plot)

    flags = {*EstimateOptions.model_fields, *given.options}
    with given.checked():
        _, request = all_of(drawable, lambda: EstimateRequest.gather(given.options, Path.cwd(), flags))
    answer = answer_to(request, LocalTracer(), Path.cwd())
    if plot is not None and answer.priced:
        from autotune.estimation.plot import draw

        draw(answer, plot)
    if json:
        print_json(estimates_document(answer))
    else:
        print_estimates(answer, console_for(stderr=False))
    if not answer.priced:
        raise NotPriced(f"{answer.model.name} could not be priced: {answer.unpriced[0].reason}")
