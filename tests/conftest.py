"""What holds for every test."""

import signal

import pytest

from autotune.candidate import Candidate
from autotune.search.space import Space
from autotune.search.strategy import Scope
from autotune.specs import Goal
from tests.search.test_space import DEFAULT

# A shell that starts a job in the background has it ignore Ctrl-C, and so would every tuner that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def space():
    return Space.parse(DEFAULT, "default.yaml")


@pytest.fixture
def scope():
    """Return a maker of scopes of 100-token sequences on a device of 1,000 bytes."""

    def make(target="6400", budget=1000, tokens=100, base=None, **goal):
        return Scope(
            base=base or Candidate(), goal=Goal(target=target, seq_len=tokens, **{"headroom": 0.0, **goal}),
            tokens_per_sample=tokens, budget=budget,
        )  # fmt: skip

    return make
