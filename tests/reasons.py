"""Why candidates are refused, as the tests compare it: by code, so that a sentence may be put better."""

from autotune.candidate import Candidate
from autotune.techniques.axis import Context
from autotune.techniques.check import refusals

ANYWHERE = Context()


def reasons(candidate: Candidate, context: Context = ANYWHERE) -> list[tuple[str, ...]]:
    """Return (axis, cause) of each reason why a candidate cannot run, with the axes that exclude it where some do."""
    return [(refused.axis, refused.cause, *refused.others) for refused in refusals(candidate, context)]
