"""Reading the worker's messages from a byte stream that may hold anything."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from autotune.probe.protocol import MESSAGE, Answer, Progress

LINE_CAP = 4 * 2**20
"""Bytes of the longest line that can be a message; a longer one is dropped as it arrives."""
VIOLATIONS_KEPT = 5


class Messages:
    """Takes bytes as they come, and keeps the messages in them. Memory stays bounded whatever arrives."""

    def __init__(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.answer: Answer | None = None
        """The first complete answer; what follows cannot take it back."""
        self.progress: Progress | None = None
        self.baseline: int | None = None
        self.violations: list[str] = []
        self._on_progress = on_progress
        self._line = bytearray()
        self._dropping = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._extend(piece)
            self._end_line()
        self._extend(rest)

    def close(self) -> None:
        """End the stream: a last line without its newline was cut off, and is no message."""
        if self._line:
            self._violation(f"the last line was cut off after {len(self._line)} bytes")
            self._line.clear()

    def _extend(self, piece: bytes) -> None:
        if self._dropping:
            return
        self._line += piece
        if len(self._line) > LINE_CAP:
            self._violation(f"a line is longer than {LINE_CAP} bytes")
            self._line.clear()
            self._dropping = True

    def _end_line(self) -> None:
        line, dropped = bytes(self._line), self._dropping
        self._line.clear()
        self._dropping = False
        if dropped or not line.strip():
            return
        try:
            message = MESSAGE.validate_json(line)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in problem["loc"])
            self._violation(f"not a message: {where + ': ' if where else ''}{problem['msg']}: {line[:80]!r}")
            return
        if self.answer is not None:
            self._violation(f"a message of type {message.type!r} after the answer")
        elif isinstance(message, Progress):
            self.progress = message
            self.baseline = message.baseline if message.baseline is not None else self.baseline
            if self._on_progress is not None:
                self._on_progress(message)
        else:
            self.answer = message

    def _violation(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(what)
