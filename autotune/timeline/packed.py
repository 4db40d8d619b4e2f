"""Plain data as bytes: JSON whose long lists of integers stand behind it as binary numbers, compressed."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from typing import Any

LONG = 16
"""Integers that a list has at least which stands in binary."""
_LENGTH = struct.Struct("<I")
_NUMBERS = "\0"
"""The only key of what stands for a list in the JSON: its type of numbers and how many there are."""


def pack(data: object) -> bytes:
    """Return data made of dictionaries, lists, dataclasses and what JSON knows, for `unpack`.

    A list of integers stands in a dictionary, a dataclass or by itself, and no key is a zero character.
    """
    numbers: list[bytes] = []
    text = json.dumps(_without_numbers(data, numbers), separators=(",", ":")).encode()
    return zlib.compress(b"".join([_LENGTH.pack(len(text)), text, *numbers]), 1)


def unpack(content: bytes) -> Any:
    """Return what `pack` was given, of dictionaries, lists and what JSON knows. Raises ValueError for anything else."""
    try:
        whole = memoryview(zlib.decompress(content))
        (length,) = _LENGTH.unpack_from(whole)
    except (zlib.error, struct.error) as error:
        raise ValueError(f"not packed data: {error}") from error
    position = _LENGTH.size + length

    def put_back(found: dict[str, Any]) -> Any:
        nonlocal position
        if _NUMBERS not in found:
            return found
        kind, count = found[_NUMBERS]
        values = array(kind)
        end = position + count * values.itemsize
        values.frombytes(whole[position:end])
        if len(values) != count:
            raise ValueError("packed data ends early")
        position = end
        return _turned(values).tolist()

    return json.loads(bytes(whole[_LENGTH.size : _LENGTH.size + length]), object_hook=put_back)


def _without_numbers(value: Any, numbers: list[bytes]) -> Any:
    """Return data in which a mark stands for each long list of integers; their bytes are appended in order."""
    if isinstance(value, list) and len(value) >= LONG and set(map(type, value)) == {int}:
        kind = _narrowest(min(value), max(value))
        numbers.append(_turned(array(kind, value)).tobytes())
        return {_NUMBERS: [kind, len(value)]}
    if isinstance(value, dict):
        return {key: _without_numbers(one, numbers) for key, one in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _without_numbers(getattr(value, name), numbers) for name in value.__dataclass_fields__}
    return value


def _narrowest(low: int, high: int) -> str:
    for kind in "bhiq":
        most = 1 << (8 * array(kind).itemsize - 1)
        if -most <= low and high < most:
            return kind
    raise OverflowError("a number takes more than 64 bits")


def _turned(values: array[int]) -> array[int]:
    """Return numbers in the byte order of files, little-endian, or from it back in this machine's."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
