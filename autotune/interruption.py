"""Signals that ask a command to end (SIGINT, SIGTERM, SIGHUP): raised in the main thread, where nothing is half done.

What unwinds ends its processes and journals what was under way. A signal that comes meanwhile changes nothing: the
command is ending. Where nobody listens (autotune as a library) Ctrl-C is Python's own KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_depth = 0
_pending: int | None = None


class Interruption(BaseException):
    """A signal asked the command to end; the text is its name.

    No KeyboardInterrupt, because libraries on the way turn that into exit codes of their own.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def interruption(error: BaseException | None) -> BaseException | None:
    """Return what asked for the end, where an exception came of that: itself, or what it was raised in."""
    while error is not None and not isinstance(error, Interruption | KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def name_of(asked: BaseException) -> str:
    """Return the name of the signal that asked for the end."""
    return signal.Signals(_number(asked)).name


def exit_code(asked: BaseException) -> int:
    """Return the code that shells give for the signal: 130, 143 or 129."""
    return 128 + _number(asked)


@contextmanager
def listening() -> Iterator[None]:
    """Raise Interruption at each of SIGNALS, unless whoever started this process has it ignore them (nohup)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _answer) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _answer:
                signal.signal(number, handler)


def ignore() -> None:
    """Let no signal disturb the end any more."""
    for number in SIGNALS:
        with suppress(ValueError):  # not the main thread
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def shielded() -> Iterator[None]:
    """Put off what a signal raises until the body is done, which must be soon; for the main thread alone."""
    global _depth, _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth and _pending is not None:
            number, _pending = _pending, None
            raise Interruption(number)


def _answer(number: int, _frame: FrameType | None) -> None:
    global _pending
    if interruption(sys.exc_info()[1]) is not None:
        return  # the command is ending already
    if _depth:
        _pending = _pending or number
        return
    raise Interruption(number)


def _number(asked: BaseException) -> int:
    return asked.number if isinstance(asked, Interruption) else signal.SIGINT
