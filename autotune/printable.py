r"""Text that somebody else wrote, made fit to be shown: file names, keys, exception texts, what a worker said.

Such text is data. On a terminal a control character moves the cursor or paints the screen, and bidirectional marks
reorder a line, so all of them are written out (`\x1b`); what is too long is cut, with its length.
"""

from __future__ import annotations

import re

QUOTED = 120
"""Characters of a value that a message shows."""
LINE = 2000
"""Characters of a line that a message shows."""

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""All but newline and tab that is no character to see, and what would reorder those that are."""


def printable(text: str) -> str:
    """Return text with every control character written out, except newlines and tabs."""
    return _UNPRINTABLE.sub(_written_out, text)


def shortened(text: str, most: int = LINE) -> str:
    """Return text cut after so many characters, with how many there were."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def quoted(value: object, most: int = QUOTED) -> str:
    """Return a value as Python writes it, cut where it is long; also a number of more digits than Python writes."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * most:
        return f"a number of about {round(value.bit_length() * 0.30103):,} digits"
    if isinstance(value, str):
        return shortened(repr(value[: most + 1]), most) if len(value) > most else repr(value)
    try:
        return shortened(repr(value), most)
    except (ValueError, RecursionError):  # it holds such a number, or more levels than Python walks
        return f"a {type(value).__name__} too large to show"


def _written_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
