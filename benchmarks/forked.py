"""Run a function on each of many items in children of this process, which has imported all and run nothing."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import NamedTuple


class Answer(NamedTuple):
    """What became of one item."""

    item: str
    text: str
    """What the function returned, or how its process ended without."""
    seconds: float


class _Child(NamedTuple):
    item: str
    process: ForkProcess
    began: float


def each_alone(
    items: Iterable[str], function: Callable[[str], str], patience: float, at_once: int
) -> Iterator[Answer]:
    """Return what the function says of every item, in the order in which it ends; `patience` seconds for each."""
    waiting = iter(items)
    children: dict[Connection, _Child] = {}
    while True:
        for item in itertools.islice(waiting, at_once - len(children)):
            answers, child = _start(item, function)
            children[answers] = child
        if not children:
            return
        ready = wait(children, timeout=1.0)
        for answers, child in list(children.items()):
            seconds = time.monotonic() - child.began
            if answers in ready or seconds > patience:
                text = _received(answers) if answers in ready else f"took more than {patience:.0f} s"
                child.process.kill()
                child.process.join()
                answers.close()
                del children[answers]
                yield Answer(child.item, text, seconds)


def _start(item: str, function: Callable[[str], str]) -> tuple[Connection, _Child]:
    context = multiprocessing.get_context("fork")
    answers, answering = context.Pipe(duplex=False)
    process = context.Process(target=lambda: answering.send(function(item)))
    process.start()
    answering.close()
    return answers, _Child(item, process, time.monotonic())


def _received(answers: Connection) -> str:
    try:
        text: str = answers.recv()
    except EOFError:
        return "its process died"
    return text
