"""Parse and print quantities: memory, token counts, durations.

Inside the program memory is in bytes, time in seconds and batches in tokens or samples, always as plain
numbers; text appears only at the edges. Binary and decimal prefixes are never mixed up: `K, M, G, T` are
powers of 1000 and `Ki, Mi, Gi, Ti` powers of 1024. The screen shows memory in GiB (2^30 bytes).
"""

from __future__ import annotations

import re
from decimal import Decimal

from autotune.printable import quoted

GIB = 2**30
MIB = 2**20

LARGEST = 2**60
"""The largest quantity that is read: an exbibyte, or a million million million."""

_PREFIX: dict[str, int] = {
    "": 1,
    "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"^\s*(\d[\d_,]*(?:\.\d+)?)\s*([KMGT]i?)?\s*$", re.IGNORECASE | re.ASCII)
_BYTES = re.compile(r"^\s*(\d[\d_,]*(?:\.\d+)?)\s*([KMGT]i?)?B?\s*$", re.IGNORECASE | re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE | re.ASCII)
_SECONDS: dict[str, float] = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _scaled(match: re.Match[str] | None, text: str, example: str) -> int:
    if match is None:
        raise ValueError(f"{quoted(text)} is not a quantity; write it like {example}")
    number = Decimal(match[1].replace("_", "").replace(",", ""))
    value = number * _PREFIX[(match[2] or "").upper()]
    if value > LARGEST:
        raise ValueError(f"{quoted(text, 40)} is more than there is of anything; write it like {example}")
    if value != value.to_integral_value():
        raise ValueError(f"{quoted(text)} is not a whole number; write it like {example}")
    return int(value)


def parse_count(text: str) -> int:
    """Parse a count such as `4M` (4,000,000), `64Ki` (65,536) or `4,000,000`. Raises ValueError."""
    return _scaled(_QUANTITY.match(text), text, "4M, 64Ki or 4000000")


def parse_bytes(text: str) -> int:
    """Parse a memory size such as `80GiB` (80 x 2^30) or `80GB` (80 x 10^9) into bytes. Raises ValueError."""
    return _scaled(_BYTES.match(text), text, "80GiB, 1536MiB or 80GB")


def parse_duration(text: str) -> float:
    """Parse a duration such as `1.5s`, `10m` or `1h30m` into seconds; a bare number is seconds.

    Raises ValueError.
    """
    stripped, wrong = text.strip(), f"{quoted(text)} is not a duration; write it like 90s, 10m or 1h30m"
    try:
        seconds = float(stripped)
    except ValueError:
        parts = _DURATION_PART.findall(stripped)
        if not parts or _DURATION_PART.sub("", stripped).strip():
            raise ValueError(wrong) from None
        seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
    if not 0 <= seconds < float("inf"):
        raise ValueError(wrong)
    return seconds


def format_bytes(count: float) -> str:
    """Print bytes as people read memory: `3.42 GiB`, below 1 GiB `512 MiB`, below 1 MiB `12.0 KiB`."""
    magnitude = abs(count)
    if magnitude >= GIB:
        return f"{count / GIB:.2f} GiB"
    if magnitude >= MIB:
        return f"{count / MIB:.0f} MiB"
    if magnitude >= 1024:
        return f"{count / 1024:.1f} KiB"
    return f"{count:.0f} B"


def format_size(count: int) -> str:
    """Print bytes exactly, in the largest binary unit that divides them: `3GiB`, `1536MiB`, `1000B`.

    `parse_bytes(format_size(n)) == n` for every n.
    """
    for prefix in ("TI", "GI", "MI", "KI"):
        unit = _PREFIX[prefix]
        if count and count % unit == 0:
            return f"{count // unit}{prefix[0]}iB"
    return f"{count}B"


def format_count(count: float) -> str:
    """Print a count with thousands separators: `4,000,000`."""
    return f"{count:,.0f}"


def format_counted(count: int, noun: str) -> str:
    """Print a count with its noun in singular or plural: `1 micro-step`, `2,000 micro-steps`."""
    return f"{format_count(count)} {noun}{'s' * (count != 1)}"


def format_slowdown(share: float) -> str:
    """Print by how much something takes longer: `3.6% slower`, from twice as long on `5.6 times as long`."""
    return f"{share:.1%} slower" if share < 1 else f"{1 + share:.1f} times as long"


def format_duration(seconds: float) -> str:
    """Print seconds as `0.42 s`, `12.3 s`, `3m 05s` or `2h 07m`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"
