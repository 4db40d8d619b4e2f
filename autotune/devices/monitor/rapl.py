"""The energy of this machine's processors, as Linux's powercap counts it (RAPL: Intel's, and AMD's since Zen)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotune.errors import AutotuneError

POWERCAP = Path("/sys/class/powercap")
"""Each folder in it is a domain: `name` says of what, `energy_uj` how many microjoules since some time, and at
`max_energy_range_uj` that begins anew (Documentation/power/powercap/powercap.rst of the kernel)."""


class RaplError(AutotuneError):
    """There is no counter, or this user may not read it."""


class Rapl:
    """The packages of all sockets together: what anything that runs on them takes, this process or another."""

    def __init__(self, root: Path = POWERCAP) -> None:
        """Raise RaplError where there is no counter of a package, or this user may not read one."""
        self._counters = [_Counter(folder) for folder in _packages(root)]
        if not self._counters:
            raise RaplError(
                f"Linux counts no energy of this machine's processors: {root} has no package, as in most virtual "
                "machines and containers"
            )

    def joules(self) -> float:
        """Return the energy since this object was made. Each counter has to be read before it ran round twice.

        A package of 300 W runs round in about a quarter of an hour.
        """
        return sum(counter.read() for counter in self._counters) / 1e6


class _Counter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._range = self._number("max_energy_range_uj")
        self._last = self._number("energy_uj")
        self._taken = 0

    def read(self) -> int:
        now = self._number("energy_uj")
        self._taken += now - self._last if now >= self._last else now + self._range - self._last
        self._last = now
        return self._taken

    def _number(self, name: str) -> int:
        path = self._folder / name
        try:
            return int(path.read_text("ascii"))
        except PermissionError:
            raise RaplError(
                f"{path} may be read by root alone; run as root, or let this user read it: chmod a+r {path}"
            ) from None
        except (OSError, ValueError) as error:
            raise RaplError(f"{path} cannot be read: {error}") from None


def lacks_energy(root: Path = POWERCAP) -> str:
    """Return why the energy of this machine's processors cannot be counted; empty where it can."""
    try:
        Rapl(root)
    except RaplError as error:
        return str(error)
    return ""


def _packages(root: Path) -> Iterable[Path]:
    """Return the domains that are a whole package; the others are parts of these, or of the whole board."""
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            if (folder / "name").read_text("ascii").startswith("package"):
                yield folder
        except (OSError, ValueError):
            continue
