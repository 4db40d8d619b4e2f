"""The energy of processors, on a folder made like Linux's powercap."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.devices.cpu import CpuDevice
from autotune.devices.monitor.rapl import Rapl, RaplError, lacks_energy
from autotune.units import GIB


def domain(root: Path, folder: str, name: str, energy: int, most: int = 1_000_000) -> Path:
    made = root / folder
    made.mkdir(parents=True, exist_ok=True)
    for file, text in (("name", name), ("energy_uj", energy), ("max_energy_range_uj", most)):
        (made / file).write_text(f"{text}\n")
    return made / "energy_uj"


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    first = domain(tmp_path, "intel-rapl:0", "package-0", 500)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 900)
    part = domain(tmp_path, "intel-rapl:0:0", "core", 100)
    board = domain(tmp_path, "intel-rapl:2", "psys", 100)
    counter = Rapl(tmp_path)
    assert counter.joules() == 0.0
    for file, now in ((first, 2_500), (second, 1_000), (part, 9_000), (board, 9_000)):
        file.write_text(f"{now}\n")
    assert counter.joules() == pytest.approx(0.0021)


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 999_000)
    counter = Rapl(tmp_path)
    for now in (1_000, 999_500, 500):
        file.write_text(str(now))
        last = counter.joules()
    assert last == pytest.approx((2_000 + 998_500 + 1_000) / 1e6)


def test_why_energy_cannot_be_counted_is_said_and_in_the_devices_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no package, as in most virtual machines" in lacks_energy(tmp_path)
    file = domain(tmp_path, "intel-rapl:0", "package-0", 1)
    assert lacks_energy(tmp_path) == ""
    file.write_text("much")
    assert f"{file} cannot be read" in lacks_energy(tmp_path)

    def refuse(path: Path, *_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(
        Path, "read_text", lambda path, *rest: refuse(path) if path == file else path.open().read()
    )
    with pytest.raises(RaplError, match="may be read by root alone"):
        Rapl(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("autotune.devices.cpu.lacks_energy", lambda: "")
    assert CpuDevice(2 * GIB).facts().energy_counter == "rapl"
    monkeypatch.setattr("autotune.devices.cpu.lacks_energy", lambda: "none here")
    facts = CpuDevice(2 * GIB).facts()
    assert (facts.energy_counter, facts.lacks_energy) == (None, "none here")
