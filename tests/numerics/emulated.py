"""Candidates for a GPU that a processor computes by emulation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from autotune.candidate import Candidate
from autotune.techniques.axis import Context
from autotune.techniques.check import Refusal
from autotune.techniques.check import refused as refused_in
from autotune.worker.build import composition
from autotune.worker.replacing import replaced


def on_a_gpu(candidate: Candidate, context: Context) -> Refusal | None:
    """Judge a candidate as for a GPU, whatever it is to run on."""
    return refused_in(candidate, replace(context, kind="cuda"))


@contextmanager
def judged_as_on_a_gpu() -> Iterator[None]:
    """Let a processor train what `cuda` may."""
    with replaced([(composition, "refused", on_a_gpu)]):
        yield
