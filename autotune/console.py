"""The console on which foreign text is shown as text.

What is printed is made of names, keys, exception texts and words of workers, so nothing in it is markup or an emoji
code, and no control character reaches the terminal but those that rich itself writes for its styles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from autotune.printable import printable


class PlainConsole(Console):
    """A rich console that reads nothing into text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text that is printable, as wide as it will be shown."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments; the text of each is printable. Tables render their cells through this, too."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


class Unpadded:
    """A text file that gets no blanks at the ends of lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write lines without the blanks at their ends."""
        return self._file.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        """Return whatever else a file has."""
        return getattr(self._file, name)


_PADDING = re.compile(r" +(?=\n)")
