"""What went wrong in a training: memory that was refused, whether or not somebody caught that, and what ended it."""

from __future__ import annotations

import traceback
from typing import Any

from autotune.watch.tensors import refusal

LONGEST = 16_000
"""Characters of a traceback that are kept."""


class Failures:
    """Keeps refusals in their order, and the exception that ended the process."""

    def __init__(self) -> None:
        self.refusals: list[dict[str, Any]] = []
        self.error: dict[str, Any] | None = None
        self._known: list[int] = []

    def note_refusal(self, error: BaseException, torch: Any, phase: str, step: int, free: int | None) -> bool:
        """Keep an exception that says that memory was refused; tell whether it is one, and not known yet."""
        found = refusal(error, torch)
        if found is None or id(error) in self._known:
            return False
        self._known.append(id(error))
        self.refusals.append({"phase": phase, "step": step, "free": free, **found})
        return True

    def end(self, error: BaseException, torch: Any, phase: str, free: int | None) -> None:
        """Keep the exception that ends the process; `free` are bytes that were left."""
        found = refusal(error, torch)
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        self.error = {
            "kind": type(error).__name__,
            "message": str(error)[:2000],
            "phase": phase,
            "refused": found is not None,
            "requested": found["requested"] if found else None,
            "free": free,
            "traceback": "".join(lines)[-LONGEST:],
        }
