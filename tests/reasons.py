"""Why candidates are refused, as the tests compare it: by code, so that a sentence may be put better."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Cause
from autotune.techniques.axis import Context
from autotune.techniques.check import refusals
from autotune.worker.errors import CannotRun

ANYWHERE = Context()


def reasons(candidate: Candidate, context: Context = ANYWHERE) -> list[tuple[str, ...]]:
    """Return (axis, cause) of each reason why a candidate cannot run, with the axes that exclude it where some do."""
    return [(refused.axis, refused.cause, *refused.others) for refused in refusals(candidate, context)]


@contextmanager
def refused(axis: str | None, cause: Cause, match: str | None = None) -> Iterator[None]:
    """Expect a worker to refuse the candidate that it builds or trains, for the value of an axis.

    `match` is for the one test of a sentence that a user reads.
    """
    with pytest.raises(CannotRun, match=match) as caught:
        yield
    found, reason = (caught.value.axis, caught.value.cause), caught.value.reason
    del caught  # a frame that its traceback holds: what was assembled would stay open
    assert found == (axis, cause), reason
