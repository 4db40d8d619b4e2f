"""This machine, looked at by the process that asks: what is installed on it, and what it is."""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from autotune.site import RECORDED, MachineFacts

INSTALLED_AS = {
    "deepspeed": "'autotune[deepspeed]' (with DS_BUILD_OPS=0)",
    "flash-attn": "flash-attn",
    "liger-kernel": "'autotune[liger]'",
    "matplotlib": "'autotune[plots]'",
    "nvidia-ml-py": "nvidia-ml-py",
    "plotly": "'autotune[plots]'",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
}
"""What to hand to pip for a package, where that is not autotune's extra of the package's name."""


def look_around(packages: Iterable[str] = ()) -> MachineFacts:
    """Return the facts of this machine, with the versions of `packages` beside those that every record has.

    Reads package metadata only; imports nothing heavy.
    """
    versions = {name: installed(name) for name in (*RECORDED, *packages)}
    models = liger_models()
    kinds: tuple[Literal["cpu"], Literal["cuda"]] = ("cpu", "cuda")
    return MachineFacts(
        packages={name: version for name, version in versions.items() if version is not None},
        lacks_compiler={kind: reason for kind in kinds if (reason := lacks_compiler(kind)) is not None},
        liger_models=None if models is None else tuple(sorted(models)),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        libc=" ".join(platform.libc_ver()),
        processor=processor(),
    )


def installed(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def how_to_install(package: str) -> str:
    """Return the command that installs a package, by its name on PyPI."""
    return f"pip install {INSTALLED_AS.get(package) or repr(f'autotune[{package}]')}"


def lowest(package: str) -> str | None:
    """Return the lowest version of a package that autotune's own metadata allows.

    None where it allows any, or where autotune itself was never installed (a source tree on PYTHONPATH).
    """
    try:
        required = metadata.requires("autotune") or []
    except metadata.PackageNotFoundError:
        return None
    bounds = (re.match(r"([\w.-]+)[^;]*>=([\d.]+)", entry) for entry in required)
    return next((bound[2] for bound in bounds if bound and bound[1].lower() == package), None)


def lacks_compiler(kind: str) -> str | None:
    """Return why torch.compile cannot run on this machine for devices of a kind (`cpu`, `cuda`), or None.

    Triton looks for a C compiler as here (triton/runtime/build.py), for kernels that others wrote too.
    """
    if kind == "cuda":
        if not find_spec("triton"):
            return f"torch.compile needs triton on a GPU: {how_to_install('triton')}"
        named = os.environ.get("CC")
        if any(shutil.which(name) for name in ([named] if named else ["gcc", "clang"])):
            return None
        return "triton needs a C compiler (gcc or clang, or the one that CC names) to start kernels, and there is none"
    named = os.environ.get("CXX")
    if any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"])):
        return None
    return "torch.compile needs a C++ compiler on a processor (g++, or the one that CXX names), and there is none"


def liger_models() -> frozenset[str] | None:
    """Return the types of models that the installed liger-kernel has kernels for, as its source lists them.

    The source is read and not imported, which would import torch. None where there is none, or it lists them otherwise.
    """
    found = find_spec("liger_kernel")
    for folder in (found and found.submodule_search_locations) or ():
        file = Path(folder) / "transformers" / "monkey_patch.py"
        try:
            statements = ast.parse(file.read_text("utf-8")).body
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        for statement in statements:
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id="MODEL_TYPE_TO_APPLY_LIGER_FN")], value=ast.Dict(keys=keys)
                ):
                    return frozenset(str(key.value) for key in keys if isinstance(key, ast.Constant))
    return None


def processor() -> str:
    """Return the processor's model name, and how many of its cores this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {len(os.sched_getaffinity(0))} cores"
