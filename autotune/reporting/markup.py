"""The parts that pages for a browser are made of. Each holds all that it shows, and escapes every text."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from urllib.parse import quote

from rich.text import Text

from autotune.printable import printable
from autotune.reporting.columns import FittingTable

_ASSETS = resources.files("autotune") / "reporting" / "assets"


def document(title: str, parts: Iterable[str], before: Iterable[str] = (), active: bool = False) -> str:
    """Return a page of these parts; what stands `before` them is the page's own navigation.

    The page may load nothing from anywhere, and run nothing but its own script, which an `active` one has: whatever
    else is written into it by mistake is not executed either.
    """
    script = (_ASSETS / "page.js").read_text(encoding="utf-8") if active else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    source = f"'sha256-{digest}'" if active else "'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {source}; base-uri 'none'; form-action 'none'"
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{(_ASSETS / 'page.css').read_text(encoding='utf-8')}</style>\n"
        f'</head>\n<body>\n{"".join(before)}<main id="content">\n{body}\n</main>\n'
        + (f"<script>{script}</script>\n" if active else "")
        + "</body>\n</html>\n"
    )


def navigation(sections: Sequence[tuple[str, str]]) -> str:
    """Return where to go on a page, as (anchor, title), and the switch of colours."""
    links = "".join(f'<li><a href="#{anchor}">{escaped(title)}</a></li>' for anchor, title in sections)
    return (
        '<a class="skip" href="#content">Skip to the report</a>'
        f'<nav class="sections" aria-label="Sections"><div><ul tabindex="0" aria-label="Sections">{links}</ul>'
        '<button type="button" id="theme" hidden>Dark colours</button></div></nav>\n'
    )


def heading(text: str, anchor: str = "") -> str:
    """Return the heading of a part, with the name that links lead to it by."""
    name = f' id="{anchor}"' if anchor else ""
    return f"<h2{name}>{escaped(text)}</h2>"


def note(text: str) -> str:
    """Return what has to be said beside a part."""
    return f'<p class="note">{escaped(text)}</p>'


def chips(texts: Iterable[tuple[str, str]]) -> str:
    """Return short texts in a row, each as (text, kind); the kind is `good`, `bad`, `odd` or empty."""
    return (
        '<ul class="chips">'
        + "".join(f'<li class="chip {kind}">{escaped(text)}</li>' for text, kind in texts)
        + "</ul>"
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return names with what they are, as a table."""
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td>{escaped(value)}</td></tr>' for name, value in rows
    )
    return f'<div class="wide" tabindex="0"><table class="facts"><tbody>{body}</tbody></table></div>'


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
    head = "".join(
        cell("th", title, right) if title else "<td></td>" for title, right in zip(titles, sides, strict=True)
    )
    rows = []
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        row = "".join(cell("td", _plain(text), right) for text, right in zip(cells, sides, strict=True))
        rows.append(f"<tr{_class('winner', any(marked[number : number + 1]))}>{row}</tr>")
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


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


def escaped(text: str, arrows: bool = True) -> str:
    """Return a text as it is shown, whoever wrote it: nothing in it is markup; `->` becomes an arrow, unless told."""
    shown = printable(text)
    return html.escape(shown.replace(" -> ", " → ") if arrows else shown)
