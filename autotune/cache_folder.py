"""Where autotune keeps what it can make again: traces, and the allocator that it builds."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "AUTOTUNE_CACHE"
"""Environment variable that names another folder."""


def cache_folder() -> Path:
    """Return `$AUTOTUNE_CACHE`, else the place for caches that the XDG base directories name. It need not be there."""
    if own := os.environ.get(VARIABLE):
        return Path(own)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "autotune"
