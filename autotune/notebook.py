"""How results show themselves in a notebook: as tables whose every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from autotune.printable import printable


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return a table in HTML; each text is shown as it is, whoever wrote it. Without a `head` rows begin with names."""
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{_text(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    top = "".join(f"<th style='text-align:left'>{_text(name)}</th>" for name in head)
    return (
        "<table>"
        + (f"<caption style='text-align:left'>{_text(caption)}</caption>" if caption else "")
        + (f"<thead><tr>{top}</tr></thead>" if head else "")
        + f"<tbody>{body}</tbody></table>"
    )


def _text(text: str) -> str:
    return html.escape(printable(text))
