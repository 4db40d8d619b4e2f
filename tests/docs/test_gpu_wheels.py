"""Which wheels are collected for a bare machine, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu_wheels import ASSUMED, NEEDED, ROOT, WANTED, collect, pins, plain


def test_wheels_fill_the_room_in_their_order_and_the_rest_is_said(tmp_path: Path) -> None:
    def fetch(name: str, version: str, folder: Path) -> Path | None:
        if name == "nowhere":
            return None
        wheel = folder / f"{name}-{version}.whl"
        wheel.write_bytes(b"x" * {"small": 10, "huge": 100, "last": 20}[name])
        return wheel

    versions = pins("small==1.0\nhuge==2.0  # a comment\nlast==3\nnowhere==4\n")
    found, left_out = collect(["small", "huge", "nowhere", "last", "unpinned"], versions, tmp_path, 30, fetch)
    assert [path.name for path in found] == ["small-1.0.whl", "last-3.whl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last-3.whl", "small-1.0.whl"]
    assert set(left_out) == {"huge", "nowhere", "unpinned"}
    assert "--max-size" in left_out["huge"]


def test_what_is_collected_is_pinned() -> None:
    versions = pins((ROOT / "constraints.txt").read_text())
    asked = [name for name in (*NEEDED, *WANTED) if name not in ASSUMED]
    assert not [name for name in asked if plain(name) not in versions]
