"""What devices have in common on which nothing runs: one that is simulated, one that was measured before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autotune.devices.device import PREPARE_TIMEOUT


class Unwatched:
    """Sees nothing, because nothing runs."""

    peak: int | None = None

    def peak_until(self, moment: float | None) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Return None: nothing was seen."""
        return None


class UnusedDevice:
    """The parts of a `Device` that concern processes on it."""

    def data_limit(self) -> int | None:
        """Return None: there is nothing to enforce."""
        return None

    def prepare(self, timeout: float = PREPARE_TIMEOUT) -> None:
        """Return at once: nobody uses it."""

    @contextmanager
    def watch(self) -> Iterator[Unwatched]:
        """See nothing."""
        yield Unwatched()
