"""The memory and the disk of this machine as this process may use them: containers see less than there is."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

_ROOTS = (
    # Folder of the controller, file of the limit, file of the usage; v2 first.
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

_SYSCTL = Path("/proc/sys/vm")


def total_memory() -> int:
    """Return the bytes of memory that this process can ever get: the machine's, or its cgroup's limit."""
    limits = [limit for limit, _ in _groups()]
    return min([psutil.virtual_memory().total, *limits])


def available_memory() -> int:
    """Return the bytes of memory that can be taken now, without swapping and within the cgroup's limit."""
    rooms = [max(0, limit - used) for limit, used in _groups()]
    return min([psutil.virtual_memory().available, *rooms])


def unwritten_files() -> int:
    """Return the bytes of files that may be changed in memory before whoever changes more waits for the disk.

    Linux makes writers wait halfway between the limits of vm.dirty_background_ratio and vm.dirty_ratio, which are
    percentages of what is available, or those in bytes that stand for them (the kernel's documentation of sysctl vm;
    `balance_dirty_pages` in mm/page-writeback.c).
    """
    available = available_memory()
    background, most = (_limit(f"dirty{name}", available) for name in ("_background", ""))
    return (min(background, most) + most) // 2


def free_disk(folder: Path) -> int:
    """Return the free bytes of the disk that holds `folder`, which need not exist yet."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(existing).free


def _limit(name: str, available: int) -> int:
    """Return one of the kernel's limits in bytes; by its defaults where it does not tell them."""
    settings, percent = _SYSCTL, {"dirty_background": 10, "dirty": 20}[name]
    try:
        if limit := int((settings / f"{name}_bytes").read_text()):
            return limit
        percent = int((settings / f"{name}_ratio").read_text())
    except OSError:
        pass
    return available * percent // 100


def _groups() -> list[tuple[int, int]]:
    """Return limit and usage of this process's cgroup and of every group above it that sets a limit.

    Page cache that the kernel gives back at once (inactive files) does not count as used.
    """
    found = []
    for root, limit_name, usage_name, cache_name in _ROOTS:
        for group in _own_groups(root):
            try:
                limit = int((group / limit_name).read_text())  # "max" in v2 when there is no limit
                used = int((group / usage_name).read_text())
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue
            found.append((limit, used - int(stat.get(cache_name, 0))))
    return found


def _own_groups(root: Path) -> list[Path]:
    """Return the group of this process and those above it, as far as they are visible here.

    In a container the kernel's path is often not visible, and the group itself is mounted at the root.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = [root]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            parts = Path(path).parts[1:]
            groups += [root.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    return groups
