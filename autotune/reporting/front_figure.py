"""The picture of memory against speed, drawn by plotly: what was measured and what is predicted, each with its mark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from autotune.reporting.tradeoffs import Tradeoffs, peak_text, speed_text
from autotune.search.context import SearchContext
from autotune.search.pareto import Point
from autotune.techniques.families import title as title_of
from autotune.units import GIB

_MARKS: dict[str, tuple[str, str]] = {
    "measured": ("circle", "#1f6fb4"),
    "replayed": ("square", "#1f6fb4"),
    "predicted": ("diamond-open", "#c9822b"),
}
_NEAR = 2.0
"""Times the largest peak, up to which what may be taken is drawn: beyond, it would press all marks to one side."""
_TIGHT = "does not leave the headroom"
_FRONT, _WINNER, _LIMIT = "#4fae7a", "#b02020", "#777777"


def front_figure(found: Tradeoffs, context: SearchContext) -> str:
    """Return the picture as a part of a page, plotly's code included: it needs no network."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    front = [point for point in found.front if point.tokens_per_second is not None]
    figure.add_trace(
        graph_objects.Scatter(
            x=[_gib(point.peak) for point in front], y=[point.tokens_per_second for point in front],
            mode="lines", line={"color": _FRONT, "width": 2, "shape": "hv"}, name="nothing beats these in both",
            hoverinfo="skip",
        )
    )  # fmt: skip
    for name, (symbol, colour) in _MARKS.items():
        if shown := [point for point in _drawn(found) if point.evidence == name and point.fits]:
            figure.add_trace(_scatter(shown, name, {"symbol": symbol, "color": colour, "size": 10}))
    if tight := [point for point in _drawn(found) if not point.fits and point.evidence != "predicted"]:
        figure.add_trace(_scatter(tight, _TIGHT, {"symbol": "x", "color": _LIMIT, "size": 8}))
    if found.winner is not None and found.winner.tokens_per_second is not None:
        ring = {"symbol": "star-open", "color": _WINNER, "size": 20, "line": {"width": 2}}
        figure.add_trace(_scatter([found.winner], "winner", ring, noise=False))
    if context.usable <= _NEAR * max((point.peak for point in _drawn(found)), default=0):
        figure.add_vline(
            x=_gib(context.usable), line_color=_LIMIT, line_dash="dash", line_width=1,
            annotation_text="may be taken", annotation_position="bottom left",
        )  # fmt: skip
    figure.update_layout(
        template="plotly_white", height=460, hovermode="closest", margin={"l": 70, "r": 20, "t": 30, "b": 120},
        legend={"orientation": "h", "yanchor": "top", "y": -0.2, "x": 0},
    )  # fmt: skip
    figure.update_xaxes(
        title_text=f"peak memory of a device, GiB ({_gib(context.usable):.2f} may be taken)",
        rangemode="tozero",
    )
    figure.update_yaxes(title_text="tokens/s at the global batch", rangemode="tozero")
    text: str = figure.to_html(
        full_html=False, include_plotlyjs=True, config={"responsive": True, "displaylogo": False},
        default_width="100%",
    )  # fmt: skip
    return text


def _drawn(found: Tradeoffs) -> list[Point]:
    return [point for point in found.points if point.tokens_per_second is not None]


def _scatter(points: Sequence[Point], name: str, marker: dict[str, Any], noise: bool = True) -> Any:
    from plotly import graph_objects

    bars = {"type": "data", "array": [point.interval for point in points], "thickness": 1, "width": 3}
    return graph_objects.Scatter(
        x=[_gib(point.peak) for point in points], y=[point.tokens_per_second for point in points],
        error_y=bars if noise else None, mode="markers", marker=marker, name=name,
        text=[_hover(point) for point in points], hoverinfo="text",
    )  # fmt: skip


def _hover(point: Point) -> str:
    probe = f"probe {point.number}, " if point.number is not None else ""
    return (
        f"{html.escape(title_of(point.candidate))}, micro-batch {point.candidate.micro_batch}<br>"
        f"{peak_text(point)}, {speed_text(point)} tokens/s<br>{probe}{point.evidence}"
    )


def _gib(size: float) -> float:
    return size / GIB
