"""A table that stays readable in a narrow window: whole columns go, the least important first, and it says which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

Cell = str | Text

_GAP = 2
"""Columns of the screen between two columns of the table."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    """May have two lines; empty for one that is not spoken of when it is left out."""
    cells: Sequence[Cell]
    leaves: int = 0
    """In which turn it is left out where the table is too wide, the highest first; 0 never is."""
    least: int = 0
    """The width from which on its texts may be broken into lines; 0: its cells are never broken."""
    justify: Literal["left", "right"] = "left"
    style: str = ""

    @property
    def widest(self) -> int:
        """The width of the longest line in it."""
        texts = [self.title, *(cell.plain if isinstance(cell, Text) else cell for cell in self.cells)]
        return max(Text(line).cell_len for text in texts for line in text.split("\n"))

    @property
    def needed(self) -> int:
        """The width below which it cannot be read."""
        return min(self.least, self.widest) if self.least else self.widest


class FittingTable:
    """Columns as a table of the width that there is."""

    def __init__(self, columns: Sequence[Column]) -> None:
        assert len({len(column.cells) for column in columns}) == 1, "as many cells in each"
        self.columns = tuple(columns)

    def fitting(self, width: int) -> tuple[Column, ...]:
        """Return the columns that fit a width together; those that never leave, where even they do not."""
        columns = list(self.columns)
        while sum(column.needed + _GAP for column in columns) - _GAP > width:
            leaving = max(columns, key=lambda column: column.leaves)
            if not leaving.leaves:
                break
            columns.remove(leaving)
        return tuple(columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self.fitting(options.max_width)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for column in columns:
            table.add_column(
                column.title, justify=column.justify, style=column.style, no_wrap=not column.least,
                min_width=column.needed, overflow="fold",
            )  # fmt: skip
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*row)
        yield table
        left_out = [
            column.title.replace("-\n", "").replace("\n", " ")
            for column in self.columns
            if column not in columns
        ]
        if named := [title for title in left_out if title]:
            yield Text(f"a wider window also shows: {', '.join(named)}", style="dim")
