"""Signals that ask a command to end: raised once, never in the middle of what must be whole."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import JournalError
from autotune.interruption import Interruption, exit_code, interruption, listening, name_of, shielded

ROOT = Path(__file__).parents[2]


def send(number: int) -> None:
    """Send a signal to this process, and let its handler run."""
    os.kill(os.getpid(), number)
    for _ in range(10):
        pass


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_each_signal_is_raised_with_its_exit_code(number, code):
    before = signal.getsignal(number)
    with pytest.raises(Interruption) as asked, listening():
        send(number)
    assert exit_code(asked.value) == code
    assert name_of(asked.value) == str(asked.value) == signal.Signals(number).name
    assert signal.getsignal(number) is before


def test_a_second_signal_does_not_disturb_what_cleans_up():
    done = []

    @contextlib.contextmanager
    def resource():
        try:
            yield
        finally:
            send(signal.SIGINT)
            done.append("freed")

    def clean():
        try:
            send(signal.SIGTERM)
        except Interruption:
            send(signal.SIGHUP)
            done.append("journaled")
            raise

    with pytest.raises(Interruption) as asked, listening(), resource():  # noqa: PT012
        try:
            clean()
        finally:
            send(signal.SIGINT)
            done.append("ended")
    assert asked.value.number == signal.SIGTERM
    assert done == ["journaled", "ended", "freed"]


def test_a_signal_that_something_swallowed_can_be_repeated():
    with pytest.raises(Interruption) as asked, listening():  # noqa: PT012
        with contextlib.suppress(BaseException):  # as a destructor does
            send(signal.SIGINT)
        send(signal.SIGTERM)
    assert asked.value.number == signal.SIGTERM


def test_what_is_shielded_is_done_first():
    done = []
    with pytest.raises(Interruption), listening(), shielded():  # noqa: PT012
        with shielded():
            send(signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with pytest.raises(Interruption) as asked, listening(), shielded():  # noqa: PT012
        send(signal.SIGTERM)
        raise JournalError("the disk is full too", "unwritable")
    assert isinstance(asked.value.__context__, JournalError)


def test_what_was_raised_in_an_interruption_is_known_as_one():
    with pytest.raises(BrokenPipeError) as raised:  # noqa: PT012
        try:
            raise Interruption(signal.SIGHUP)
        finally:
            raise BrokenPipeError("the terminal is gone")
    assert name_of(interruption(raised.value)) == "SIGHUP"
    assert interruption(OSError()) is None


def test_who_was_told_to_ignore_a_signal_does():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with listening():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


COMMAND = """
import os, signal, sys
from autotune import cli
def verb():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    for _ in range(1000): pass
    print("not interrupted")
cli.app.command("wait")(verb)
cli.main(["wait"])
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("streams", ["pipes", "closed pipe", "closed"])
def test_every_verb_ends_with_the_code_of_the_signal_and_no_traceback(name, code, streams):
    read, write = os.pipe()
    if streams == "closed pipe":
        os.close(read)  # what is written fails, as to a terminal that is gone
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, name], cwd=ROOT, stdout=subprocess.PIPE, stderr=write, text=True,
        preexec_fn=(lambda: os.close(2)) if streams == "closed" else None,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stdout) == (code, "")
    if streams != "closed pipe":
        with os.fdopen(read) as said:
            text = said.read()
        assert "Traceback" not in text
        assert ("interrupted" in text) == (streams == "pipes")
        assert name == "SIGINT" or streams == "closed" or f"by {name}" in text


def test_a_terminal_that_goes_away_is_no_traceback():
    lead, follow = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.replace("os.kill", "sys.stdin.readline(); os.kill"), "SIGHUP"], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=follow, stderr=follow, text=True,
    )  # fmt: skip
    os.close(follow)
    os.close(lead)
    process.communicate("\n")
    assert process.returncode == 129
