"""What a result was obtained on: versions, operating system, processor."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("autotune", "torch", "transformers", "accelerate", "pydantic")
"""Packages whose version is written beside every result."""


def environment() -> dict[str, str]:
    """Return versions and machine as text. Reads package metadata only; imports nothing heavy."""
    found = {name: version for name in PACKAGES if (version := installed(name)) is not None}
    return {
        **found,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "processor": processor(),
    }


def installed(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Return the processor's model name, and how many of its cores this process may use."""
    import os

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} cores"
