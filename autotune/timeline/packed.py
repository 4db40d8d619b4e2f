"""Plain data as bytes: JSON whose long lists of integers stand behind it as binary numbers, compressed."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

LONG = 16
"""Integers that a list has at least which stands in binary."""
_LENGTH = struct.Struct("<I")
_NUMBERS = "\0"
"""The only key of what stands for a list in the JSON: bytes of each of its numbers, and how many there are."""


def pack(data: object) -> bytes:
    """Return data made of dictionaries, lists, dataclasses and what JSON knows, for `unpack`.

    A list of integers stands in a dictionary, a dataclass or by itself, and no key is a zero character. Raises
    OverflowError for an integer of more than 64 bits in a long list.
    """
    numbers: list[bytes] = []
    text = json.dumps(_without_numbers(data, numbers), separators=(",", ":")).encode()
    return zlib.compress(b"".join([_LENGTH.pack(len(text)), text, *numbers]), 1)


def unpack(content: bytes) -> Any:
    """Return what `pack` was given, of dictionaries, lists and what JSON knows. Raises ValueError for anything else."""
    import numpy as np  # 0.1 s that `--help` does not wait for

    try:
        whole = zlib.decompress(content)
        (length,) = _LENGTH.unpack_from(whole)
    except (zlib.error, struct.error) as error:
        raise ValueError(f"not packed data: {error}") from error
    position = _LENGTH.size + length

    def put_back(found: dict[str, Any]) -> Any:
        nonlocal position
        if _NUMBERS not in found:
            return found
        width, count = found[_NUMBERS]
        begin, position = position, position + width * count
        return np.frombuffer(whole, f"<i{width}", count, begin).tolist()

    return json.loads(whole[_LENGTH.size : position], object_hook=put_back)


def _without_numbers(value: Any, numbers: list[bytes]) -> Any:
    """Return data in which a mark stands for each long list of integers; their bytes are appended in order."""
    if isinstance(value, list) and len(value) >= LONG and set(map(type, value)) == {int}:
        import numpy as np

        found = np.array(value, dtype=np.int64)
        width = _width(int(found.min()), int(found.max()))
        numbers.append(found.astype(f"<i{width}").tobytes())
        return {_NUMBERS: [width, len(value)]}
    if isinstance(value, dict):
        return {key: _without_numbers(one, numbers) for key, one in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _without_numbers(getattr(value, name), numbers) for name in value.__dataclass_fields__}
    return value


def _width(low: int, high: int) -> int:
    """Return how many bytes hold all numbers in between."""
    return next(width for width in (1, 2, 4, 8) if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1)
