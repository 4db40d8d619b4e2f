"""The places for probes on a hardware: which devices a cell's run is bound to, and whose turn it is on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from autotune.specs import DeviceSpec


def windows(devices: Sequence[DeviceSpec], gpus: int, shared: bool) -> list[tuple[int, ...]]:
    """Return what may hold a probe of so many ranks: numbers of places; none where no place can.

    Of listed GPUs, which are `shared`, it is as many with consecutive numbers, because ranks take the GPUs that follow
    the first. Any other place (a processor, a job) holds a probe whatever its ranks.
    """
    if len(devices) == 1 or not shared:
        return [(place,) for place in range(len(devices))]
    by_index = {device.index: place for place, device in enumerate(devices)}
    wanted = [[by_index.get(device.index + rank) for rank in range(gpus)] for device in devices]
    return [tuple(place for place in window if place is not None) for window in wanted if None not in window]


SHARING = 2
"""Runs bound to one GPU at a time: while the tuner of one thinks, the other probes."""


class Places:
    """The devices of one hardware. Each run is bound to the same one throughout: its measurements are compared."""

    def __init__(self, devices: Sequence[DeviceSpec], shared: bool) -> None:
        """`shared` says whether the places are GPUs of this machine, which two runs may take turns on."""
        self._devices = tuple(devices)
        self._shared = shared
        self._turns = [threading.Lock() for _ in devices]
        self._bound = [0] * len(devices)
        self._lock = threading.Lock()
        # On the cpu device a tuner that thinks would take the time of the probe beside it.
        self._most = SHARING if shared else 1

    def load(self, gpus: int) -> int | None:
        """Return how many runs one of so many ranks would share its devices with; None where it has to wait."""
        with self._lock:
            least = min(max(self._bound[place] for place in window) for window in self._windows(gpus))
        return least if least < self._most else None

    def bind(self, gpus: int) -> Place:
        """Bind a run to the devices that the fewest others are bound to, until it is released."""
        with self._lock:
            window = min(self._windows(gpus), key=lambda window: max(self._bound[place] for place in window))
            for place in window:
                self._bound[place] += 1
        return Place(self._devices[window[0]], window, [self._turns[place] for place in window])

    def release(self, place: Place) -> None:
        """Let go of a run's devices."""
        with self._lock:
            for number in place.numbers:
                self._bound[number] -= 1

    def _windows(self, gpus: int) -> list[tuple[int, ...]]:
        return windows(self._devices, gpus, self._shared)


class Place:
    """What a run is bound to: the first of its devices, and its turns on all of them."""

    def __init__(self, device: DeviceSpec, numbers: tuple[int, ...], turns: Sequence[threading.Lock]) -> None:
        self.device = device
        self.numbers = numbers
        """Of the places."""
        self._turns = [turn for _, turn in sorted(zip(numbers, turns, strict=True), key=lambda pair: pair[0])]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other run uses the devices, and have them for the body.

        Turns are taken in the order of the places, so that no two runs wait for each other.
        """
        taken = []
        try:
            for turn in self._turns:
                turn.acquire()
                taken.append(turn)
            yield
        finally:
            for turn in reversed(taken):
                turn.release()
