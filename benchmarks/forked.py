"""Run a function on each of many items in children of this process, which has imported all and run nothing."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class Answer(NamedTuple):
    """What became of one item."""

    item: str
    text: str | None
    """What the function returned; None where it took too long, and empty where its process died."""
    seconds: float

    def text_or_end(self, patience: float) -> str:
        """Return the text, or how the process ended that was to return it."""
        if self.text is None:
            return f"took more than {patience:.0f} s"
        return self.text or "its process died"


class _Child(NamedTuple):
    item: str
    process: int
    began: float


def each_alone(
    items: Iterable[str], function: Callable[[str], str], patience: float, at_once: int
) -> Iterator[Answer]:
    """Return what the function says of every item, in the order in which it ends; `patience` seconds for each."""
    waiting = iter(items)
    children: dict[int, _Child] = {}
    while True:
        while len(children) < at_once and (item := next(waiting, None)) is not None:
            reading, child = _start(item, function)
            children[reading] = child
        if not children:
            return
        ready = select.select(list(children), [], [], 1.0)[0]
        now = time.monotonic()
        for reading, child in list(children.items()):
            if reading in ready or now - child.began > patience:
                text = _all_of(reading) if reading in ready else None
                os.close(reading)
                os.kill(child.process, signal.SIGKILL)
                os.waitpid(child.process, 0)
                del children[reading]
                yield Answer(child.item, text, time.monotonic() - child.began)


def _start(item: str, function: Callable[[str], str]) -> tuple[int, _Child]:
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.close(reading)
            os.write(writing, function(item).encode()[: select.PIPE_BUF])
        finally:
            os._exit(0)
    os.close(writing)
    return reading, _Child(item, process, time.monotonic())


def _all_of(reading: int) -> str:
    """Return what a child wrote at once: no more than a pipe takes whole."""
    return os.read(reading, select.PIPE_BUF).decode(errors="replace")
