"""The allocator that training on the processor runs with: `allocator.c`, built by this machine's C compiler.

It makes memory as exact as mapping every large block by itself does, at the speed of malloc's defaults. Where it
cannot be had (no compiler, another C library, a user's own LD_PRELOAD) blocks are mapped one by one: as much counts
against the budget, and training is slower.
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
from typing import NamedTuple

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


class Built(NamedTuple):
    """The allocator on this machine."""

    path: Path | None
    lacks: str = ""
    """Why there is none."""


def lacks_allocator() -> str:
    """Return why training on this machine's processor has every large block mapped anew; empty where it has not."""
    if os.environ.get(VARIABLE) == MALLOC:
        return f"{VARIABLE}={MALLOC} is set"
    if os.environ.get(PRELOAD):
        return f"{PRELOAD} is set, so its libraries have their way"
    return _built(cache_folder(), os.environ.get("CC", "")).lacks


def allocator_variables() -> dict[str, str]:
    """Return the variable that says what training on this machine's processor allocates with."""
    return {VARIABLE: MALLOC if lacks_allocator() else CACHING}


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that loads the allocator which it names, where this machine has it."""
    path = library() if environment.get(VARIABLE) == CACHING and not environment.get(PRELOAD) else None
    return {**environment, **({} if path is None else {PRELOAD: str(path)})}


def library() -> Path | None:
    """Return the built allocator, after building it where that was not done yet; None where it cannot be had."""
    return _built(cache_folder(), os.environ.get("CC", "")).path


@cache
def _built(folder: Path, compiler: str) -> Built:
    libc, version = platform.libc_ver()
    if sys.platform != "linux" or libc != "glibc":
        return Built(None, "it is for Linux with glibc")
    text = source()
    made_of = "\n".join([text, *FLAGS, platform.machine(), version])
    path = folder.absolute() / f"allocator-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    if any(character.isspace() or character == ":" for character in str(path)):
        # What parts names in LD_PRELOAD.
        return Built(None, f"the loader reads no path with blanks or colons: {folder}")
    if _works(path):
        return Built(path)
    compilers = [
        argv for argv in (shlex.split(compiler), ["cc"], ["gcc"], ["clang"]) if argv and shutil.which(argv[0])
    ]
    lacks = "there is no C compiler (cc; CC names another)"
    made = path.with_name(f".{path.name}.{os.getpid()}")
    for argv in compilers:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [*argv, *FLAGS, "-x", "c", "-", "-o", str(made)], input=text, text=True, check=True, timeout=_TIMEOUT,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            if _works(made):
                made.replace(path)
                return Built(path)
            lacks = f"no program runs with what {argv[0]} built in {folder}"
        except (OSError, subprocess.SubprocessError) as error:
            lacks = f"it cannot be built in {folder}: {error}"
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
    return Built(None, lacks)


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
