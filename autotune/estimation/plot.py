"""Draw estimates: what each rung takes of the GPU, and the memory of a step as it goes."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import unwritable
from autotune.estimation.pricing import Estimate
from autotune.estimation.request import EstimateReport
from autotune.estimation.tables import accumulated
from autotune.picture import DRAWN_BY, check_picture
from autotune.printable import printable, shortened
from autotune.techniques.families import title as title_of
from autotune.timeline.curve import Curve, curve
from autotune.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = (
    ("optimizer_state", "optimizer state", "#7b6fd0"),
    ("gradients", "gradients", "#d0a03c"),
    ("parameters", "parameters", "#3c7fb8"),
    ("activations", "activations", "#4fae7a"),
    ("other", "other", "#b0b0b0"),
)
"""The parts of a bar from the bottom up: field of `Breakdown`, name, colour."""
COLOURS = {
    "optimizer_state": "#7b6fd0", "gradient": "#d0a03c", "parameter": "#3c7fb8", "activation": "#4fae7a",
    "buffer": "#8a8a8a", "workspace": "#c96f6f", "temporary": "#b0b0b0",
}  # fmt: skip
"""The same for the categories of a timeline, in the order in which they are stacked."""
RESERVE = "#dddddd"
"""What allocator, context and libraries take beyond the tensors."""


NAME = 60
"""Characters of a model's name that a picture shows."""


def check_plot(file: Path) -> None:
    """Raise InputError where no picture can be written to a file: to be known before the work for it begins."""
    check_picture("--plot", file, DRAWN_BY)


def draw(answer: EstimateReport, file: Path) -> None:
    """Write a picture (.png) or an interactive page (.html). Raises InputError for anything else."""
    check_plot(file)
    assert answer.priced, "there is nothing to draw where no rung could be traced"
    try:
        if file.suffix == ".png":
            _png(answer, file)
        else:
            _html(answer, file)
    except OSError as error:
        raise unwritable(f"--plot {file} cannot be written", error, "plot") from None


def _shown(answer: EstimateReport) -> tuple[int, Curve]:
    """Return the rung whose step is drawn: the first that fits (else the one that takes least), and its curve."""
    estimates = [rung.estimate for rung in answer.priced]
    fitting = [number for number, entry in enumerate(estimates) if entry.fits]
    least = min(range(len(estimates)), key=lambda number: estimates[number].device_peak_bytes)
    number = fitting[0] if fitting else least
    shown = estimates[number]
    return number, curve(
        answer.priced[number].timeline, shown.micro_batch, accumulating=shown.accumulation_steps > 1
    )


def _heading(answer: EstimateReport) -> str:
    name = printable(shortened(answer.model.name, NAME))
    return (
        f"{name} on {answer.question.devices}{answer.hardware.id}, "
        f"micro-batch {answer.question.micro_batch} x {answer.seq_len} tokens, {accumulated(answer)} "
        "(predicted, not measured)"
    )


def _bars(answer: EstimateReport) -> list[tuple[str, str, list[float]]]:
    """Return (name, colour, GiB by rung) of every part of the bars."""
    estimates = [rung.estimate for rung in answer.priced]
    bars = [(name, colour, [_gib(getattr(e.breakdown, field)) for e in estimates])
            for field, name, colour in PARTS]  # fmt: skip
    rest = [_gib(entry.device_peak_bytes - entry.allocated_peak_bytes) for entry in estimates]
    return [*bars, ("allocator and context", RESERVE, rest)]


def _labels(answer: EstimateReport) -> list[str]:
    def largest(entry: Estimate) -> str:
        return (
            f"largest micro-batch {entry.largest_micro_batch}"
            if entry.largest_micro_batch
            else "does not fit"
        )

    return [f"{title_of(rung.estimate.candidate)}\n{largest(rung.estimate)}" for rung in answer.priced]


def _png(answer: EstimateReport, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    count = len(answer.priced)
    figure, (above, below) = pyplot.subplots(
        2,
        1,
        figsize=(11, 2.4 + 0.42 * count + 4.2),
        height_ratios=[1 + 0.42 * count, 4],
        layout="constrained",
    )
    # A name may hold what would be a formula.
    figure.suptitle(_heading(answer), fontsize=12, parse_math=False)
    left = [0.0] * count
    for name, colour, values in _bars(answer):
        above.barh(
            _labels(answer), values, left=left, color=colour, label=name, edgecolor="white", linewidth=0.4
        )
        left = [start + value for start, value in zip(left, values, strict=True)]
    _mark_memory(above, answer)
    above.invert_yaxis()
    above.set_xlabel("GiB")
    above.tick_params(axis="y", labelsize=8)
    above.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    number, step = _shown(answer)
    names = [name for name in COLOURS if name in step.levels]
    below.stackplot(
        range(len(step.totals())), *([_gib(value) for value in step.levels[name]] for name in names),
        labels=[name.replace("_", " ") for name in names], colors=[COLOURS[name] for name in names],
    )  # fmt: skip
    below.set_title(
        f"one step of {title_of(answer.priced[number].estimate.candidate)}: tensors on the device",
        fontsize=10,
    )
    below.set_ylabel("GiB")
    below.set_xlabel("allocations and releases, in order")
    below.margins(x=0)
    for start, phase in step.phases:
        below.axvline(start, color="#555555", linewidth=0.8, linestyle=":")
        below.annotate(phase, (start, 1), xycoords=("data", "axes fraction"), xytext=(3, -10),
                       textcoords="offset points", fontsize=8)  # fmt: skip
    below.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _mark_memory(axes: Axes, answer: EstimateReport) -> None:
    whole, usable = answer.hardware.usable_bytes(), answer.priced[0].estimate.usable_bytes
    axes.axvline(_gib(whole), color="#b02020", linewidth=1.5)
    axes.axvline(_gib(usable), color="#b02020", linewidth=1, linestyle="--")
    axes.annotate(f"{answer.hardware.id}: {_gib(whole):.1f} GiB", (_gib(whole), 1), xycoords=("data", "axes fraction"),
                  xytext=(-4, 4), textcoords="offset points", fontsize=8, color="#b02020", ha="right")  # fmt: skip


def _html(answer: EstimateReport, file: Path) -> None:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    number, step = _shown(answer)
    count = len(answer.priced)
    title = f"one step of {title_of(answer.priced[number].estimate.candidate)}: tensors on the device"
    share = (1 + count) / (count + 9)
    figure = make_subplots(
        rows=2, cols=1, row_heights=[share, 1 - share], vertical_spacing=0.16, subplot_titles=("", title)
    )
    labels = [label.replace("\n", "<br>") for label in _labels(answer)]
    for name, colour, values in _bars(answer):
        figure.add_trace(
            graph_objects.Bar(
                y=labels, x=values, name=name, orientation="h", marker_color=colour, legendgroup="bars",
                hovertemplate="%{x:.2f} GiB",
            ),
            row=1, col=1,
        )  # fmt: skip
    for name in COLOURS:
        if name in step.levels:
            figure.add_trace(
                graph_objects.Scatter(
                    y=[_gib(value) for value in step.levels[name]],
                    name=name.replace("_", " "), stackgroup="step", mode="lines",
                    line={"width": 0, "color": COLOURS[name]},
                    fillcolor=COLOURS[name], legendgroup="step", hovertemplate="%{y:.2f} GiB",
                ),
                row=2, col=1,
            )  # fmt: skip
    for start, phase in step.phases:
        figure.add_vline(x=start, row=2, col=1, line_dash="dot", line_width=1, annotation_text=phase)
    figure.add_vline(
        x=_gib(answer.hardware.usable_bytes()), row=1, col=1, line_color="#b02020",
        annotation_text=answer.hardware.id, annotation_position="top left",
    )  # fmt: skip
    figure.update_layout(
        barmode="stack", title=html.escape(_heading(answer)), template="plotly_white", height=420 + 46 * count,
        hovermode="closest",
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    figure.update_xaxes(title_text="GiB", row=1, col=1)
    figure.update_yaxes(title_text="GiB", row=2, col=1)
    figure.update_xaxes(title_text="allocations and releases, in order", row=2, col=1)
    figure.write_html(file, include_plotlyjs=True)


def _gib(size: float) -> float:
    return size / GIB
