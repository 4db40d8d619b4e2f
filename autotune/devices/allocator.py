"""The allocator that training on the processor runs with: `allocator.c`, built by this machine's C compiler.

It makes memory as exact as mapping every large block by itself does, at the speed of malloc's defaults. Where it cannot
be had (no compiler, another C library, a user's own LD_PRELOAD) blocks are mapped one by one: the same peaks, slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from autotune.cache_folder import cache_folder

VARIABLE = "AUTOTUNE_ALLOCATOR"
"""Environment variable that says which allocator training runs with; `MALLOC` in the user's own asks for that one."""
CACHING, MALLOC = "caching", "malloc"

FLAGS = ("-O2", "-shared", "-fPIC")
"""What a C compiler is told, by GCC's and Clang's names."""
PRELOAD = "LD_PRELOAD"
_TIMEOUT = 60.0
"""Seconds that the compiler gets, which takes some tenths; and so many again for a look at what it made."""
_LOOK = "import ctypes; ctypes.CDLL(None).autotune_give_back(); bytearray(1 << 20)"


def source() -> str:
    """Return the allocator's source, in C."""
    return (resources.files("autotune.devices") / "allocator.c").read_text(encoding="utf-8")


def allocator_variables() -> dict[str, str]:
    """Return the variable that says what training on this machine's processor allocates with."""
    if os.environ.get(VARIABLE) == MALLOC or os.environ.get(PRELOAD) or library() is None:
        return {VARIABLE: MALLOC}
    return {VARIABLE: CACHING}


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that loads the allocator which it names, where this machine has it."""
    path = library() if environment.get(VARIABLE) == CACHING and not environment.get(PRELOAD) else None
    return {**environment, **({} if path is None else {PRELOAD: str(path)})}


def library() -> Path | None:
    """Return the built allocator, after building it where that was not done yet; None where it cannot be had."""
    return _library(cache_folder(), os.environ.get("CC", ""))


@cache
def _library(folder: Path, compiler: str) -> Path | None:
    libc, version = platform.libc_ver()
    if sys.platform != "linux" or libc != "glibc":
        return None
    text = source()
    made_of = "\n".join([text, *FLAGS, platform.machine(), version])
    path = folder.absolute() / f"allocator-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    if any(character.isspace() or character == ":" for character in str(path)):  # what parts names there
        return None
    if _works(path):
        return path
    made = path.with_name(f".{path.name}.{os.getpid()}")
    for argv in (shlex.split(compiler), ["cc"], ["gcc"], ["clang"]):
        if not argv or shutil.which(argv[0]) is None:
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [*argv, *FLAGS, "-x", "c", "-", "-o", str(made)], input=text, text=True, check=True,
                timeout=_TIMEOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            if _works(made):
                made.replace(path)
                return path
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
    return None


def _works(path: Path) -> bool:
    """Tell whether a program runs with it. The loader only warns of what it cannot load, as from a noexec disk."""
    if not path.exists():
        return False
    try:
        seen = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LOOK], env={**os.environ, PRELOAD: str(path)}, timeout=_TIMEOUT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return seen.returncode == 0
