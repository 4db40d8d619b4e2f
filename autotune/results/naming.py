"""Which night of a store a name means."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from autotune.errors import InputError, nearest
from autotune.printable import quoted
from autotune.results.store import Store


class NightName(NamedTuple):
    """A night, as a store knows it."""

    sweep: str
    night: str


def night_named(store: Store, name: str) -> NightName:
    """Return the night that a name means: `SWEEP/NIGHT`, its folder, a sweep's name (its newest), or `last`.

    Raises InputError, naming the nearest, where the store has none.
    """
    sweeps = store.sweeps()
    if not sweeps:
        raise InputError("the store has no nights yet", about="night")
    if name == "last":
        newest = max((store.nights(sweep)[-1], sweep) for sweep in sweeps)
        return NightName(newest[1], newest[0])
    if name in sweeps:
        return NightName(name, store.nights(name)[-1])
    *_, sweep, night = ("", *PurePath(name).parts)[-2:] if PurePath(name).parts else ("", "")
    if sweep in sweeps:
        nights = store.nights(sweep)
        if night in nights:
            return NightName(sweep, night)
        raise InputError(
            f"sweep {sweep} has no night {quoted(night)} in the store; {nearest(night, nights)}",
            about="night",
        )
    raise InputError(
        f"the store has no sweep {quoted(sweep or name)}; {nearest(name, sweeps)}", about="night"
    )
