"""What drawings on pages share: numbers for coordinates, ticks for axes, a texture for each category of memory."""

from __future__ import annotations

import math

from autotune.reporting.markup import escaped

TEXTURES = ("gradients", "optimizer_state", "refused")
"""Categories whose colour has lines upon it, each in another direction: a colour alone never tells two apart."""


def number(value: float) -> str:
    """Return a coordinate in as few characters as its eye needs."""
    return f"{value:.1f}".removesuffix(".0")


def ticks(most: float, about: int = 5) -> list[float]:
    """Return round numbers from 0 up to `most`, about so many."""
    if most <= 0:
        return [0.0]
    rough = most / about
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999)
    return [index * step for index in range(math.floor(most / step * 1.0001) + 1)]


def textures() -> str:
    """Return the textures that all drawings of a page refer to, as a drawing of no size."""
    lines = {
        "gradients": "M-1 1 1 -1M0 6 6 0M5 7 7 5",
        "optimizer_state": "M-1 5 1 7M0 0 6 6M5 -1 7 1",
        "refused": "M0 0 6 6M0 6 6 0",
    }
    patterns = "".join(
        f'<pattern id="t-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path class="t-line" style="stroke-width:1.6" d="{path}"/></pattern>'
        for name, path in lines.items()
    )
    return f'<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>{patterns}</defs></svg>'


def legend(names: dict[str, str]) -> str:
    """Return what the colours and textures mean; `names` are texts by the categories' classes."""
    items = "".join(
        f'<li><svg aria-hidden="true" viewBox="0 0 18 13">{swatch(kind)}</svg>{escaped(text)}</li>'
        for kind, text in names.items()
    )
    return f'<ul class="legend">{items}</ul>'


def swatch(kind: str) -> str:
    """Return a small rectangle as a category's own look is."""
    area = '<rect width="18" height="13"'
    return f'{area} class="s-{kind}"/>' + (f'{area} fill="url(#t-{kind})"/>' if kind in TEXTURES else "")
