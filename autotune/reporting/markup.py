"""The parts that pages for a browser are made of. Each holds all that it shows, and escapes every text."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

from rich.text import Text

from autotune.printable import printable
from autotune.reporting.columns import FittingTable

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1180px; }
body { padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.45rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; border-bottom: 1px solid #ddd; }
p.note { color: #555; margin: .3rem 0; max-width: 75ch; }
p.absent { color: #8a5a00; background: #fff6e0; padding: .5rem .75rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th { text-align: left; border-bottom: 1px solid #999; white-space: pre-line; }
th, td { padding: .25rem .9rem .25rem 0; vertical-align: top; }
td.right, th.right { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.winner td { font-weight: 600; }
table.facts td:first-child { color: #666; white-space: nowrap; }
ul { padding-left: 1.2rem; margin: .3rem 0; }
"""


def document(title: str, parts: Iterable[str], style: str = "") -> str:
    """Return a page of these parts, with further rules of style."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """Return the heading of a part."""
    return f"<h2>{escaped(text)}</h2>"


def bullets(lines: Iterable[str]) -> str:
    """Return lines as a list."""
    return f"<ul>{''.join(f'<li>{escaped(line)}</li>' for line in lines)}</ul>"


def table(
    shown: FittingTable, marked: Sequence[bool] = (), link: Callable[[str], str | None] = lambda _: None
) -> str:
    """Return a table of the terminal with all its columns but bars and empty ones; rows that are `marked` stand out.

    `link` gives the address that a cell's text leads to, where it leads anywhere.
    """
    columns = [column for column in shown.columns if any(_plain(cell).strip("━") for cell in column.cells)]

    def cell(tag: str, text: str, right: bool) -> str:
        return f"<{tag}{_class('right', right)}>{_linked(text, link(text) if tag == 'td' else None)}</{tag}>"

    sides = [column.justify == "right" for column in columns]
    titles = [_unbroken(column.title) for column in columns]
    head = "".join(cell("th", title, right) for title, right in zip(titles, sides, strict=True))
    rows = []
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        row = "".join(cell("td", _plain(text), right) for text, right in zip(cells, sides, strict=True))
        rows.append(f"<tr{_class('winner', any(marked[number : number + 1]))}>{row}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _linked(text: str, address: str | None) -> str:
    shown = escaped(text)
    return shown if address is None else f'<a href="{html.escape(quote(address))}">{shown}</a>'


def _unbroken(title: str) -> str:
    """Return a column's title without the breaks that a terminal needs."""
    return title.replace("micro-\n", "micro-").replace("-\n", "").replace("\n", " ")


def _class(name: str, given: bool) -> str:
    return f' class="{name}"' if given else ""


def _plain(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell


def escaped(text: str) -> str:
    """Return a text as it is shown, whoever wrote it: nothing in it is markup."""
    return html.escape(printable(text).replace(" -> ", " → "))
