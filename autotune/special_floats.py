"""Infinities and NaN in a configuration, which JSON has no words for: as transformers 5 writes and reads them.

Limits of the time steps of Mamba 2, and of what is built on it (Bamba, Falcon-H1, Granite 4, Nemotron-H), are
0 and infinity. On the hub most are written as Python does (`Infinity`), of which other readers make text or an error.
"""

from __future__ import annotations

import math
from typing import Any

_TAG = "__float__"
_VALUES = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def tagged(value: Any) -> Any:
    """Return a JSON value with each number that is not finite as `{"__float__": "Infinity"}`, `-Infinity` or `NaN`."""
    if isinstance(value, dict):
        return {key: tagged(part) for key, part in value.items()}
    if isinstance(value, list):
        return [tagged(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_TAG: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def untagged(value: Any) -> Any:
    """Return a JSON value with the numbers that `tagged` has written, in place of what it wrote."""
    if isinstance(value, dict):
        if value.keys() == {_TAG} and isinstance(value[_TAG], str) and value[_TAG] in _VALUES:
            return _VALUES[value[_TAG]]
        return {key: untagged(part) for key, part in value.items()}
    if isinstance(value, list):
        return [untagged(part) for part in value]
    return value
