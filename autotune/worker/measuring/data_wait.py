"""How long a device stood still because its next batch was not there yet."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

import torch


class DataWait(Protocol):
    """Open around each taking of a batch on the host; the copy to the device is none of it."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def seconds(self) -> float:
        """Return the seconds since the last call, with the device at rest."""
        ...


def data_wait_on(device: torch.device) -> DataWait:
    """Return what times waiting for batches on a device."""
    return _QueueWait() if device.type == "cuda" else _HostWait()


class _HostWait:
    """On the CPU, where nothing is computed while a batch is taken."""

    def __init__(self) -> None:
        self._waited = self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._waited += time.perf_counter() - self._began

    def seconds(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited


class _QueueWait:
    """On a GPU, which computes what is in its queue while the host takes a batch.

    Two events stand in the queue with nothing between them: the time from one to the other is what the device had
    nothing to do, and 0 where it was still busy when the batch was there.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        self._pairs.append((began, ended))

    def __exit__(self, *error: object) -> None:
        self._pairs[-1][1].record()

    def seconds(self) -> float:
        milliseconds = [float(began.elapsed_time(ended)) for began, ended in self._pairs]
        self._pairs.clear()
        return sum(milliseconds) / 1000
