"""Make libraries of CUDA that do nothing, for the CUDA build of torch to import without CUDA's gigabytes.

    python tests/cuda_build/stub_libraries.py SITE_PACKAGES

Each library that torch's own ask for and that is nowhere gets the functions that they ask of it, which all answer 1:
an error, in each of these libraries. The runtime and the profiler, which torch calls while it is imported, must be
the real ones (`nvidia-cuda-runtime`, `nvidia-cuda-cupti`: 13 MB). Needs gcc, and nm and readelf of binutils.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

FOLDER = Path("nvidia", "cu13", "lib")
"""Where torch's libraries look, beside their own folder (their RUNPATH)."""
DRIVER = "libcuda.so.1"
"""Not made: a machine without a GPU has none, and torch asks for it when it is first needed."""
OF_CUDA = re.compile(r"cublas|cudnn|cufft|cuFile|curand|cusolver|cusparse|p?nccl|nvrtc|\w*nvshmem")
"""Begins the functions without a version that are of these libraries, among those of Python and others."""


def run(*command: str) -> str:
    """Run a program, and return what it printed."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def asked(library: Path) -> tuple[dict[str, str], set[str], dict[str, set[str]]]:
    """Return what a library needs: versions with their library, plain symbols, and symbols by their version."""
    libraries: dict[str, str] = {}
    current = ""
    for line in run("readelf", "--version-info", "--wide", str(library)).splitlines():
        if found := re.search(r"File: (\S+)", line):
            current = found[1]
        elif current and (found := re.search(r"Name: (\S+)\s+Flags", line)):
            libraries.setdefault(found[1], current)
    plain: set[str] = set()
    versioned: dict[str, set[str]] = defaultdict(set)
    listed = run("nm", "--dynamic", "--undefined-only", "--with-symbol-versions", str(library))
    for kind, name in (line.split()[-2:] for line in listed.splitlines()):
        if kind == "U":  # what is weak may be missing
            symbol, _, version = name.replace("@@", "@").partition("@")
            if version:
                versioned[version].add(symbol)
            else:
                plain.add(symbol)
    return libraries, plain, versioned


def needed(library: Path) -> list[str]:
    """Return the libraries that one names."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "--dynamic", "--wide", str(library)))


def defined(library: Path) -> set[str]:
    """Return the symbols that a library has."""
    listed = run("nm", "--dynamic", "--defined-only", str(library))
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}


def make(site: Path) -> list[str]:
    """Make what is missing beside the real libraries, and return its names."""
    own = sorted((site / "torch" / "lib").glob("*.so*"))
    folder = site / FOLDER
    real = [path for path in sorted(folder.glob("*.so*")) if not (folder / f"{path.name}.c").exists()]
    there = {path.name for path in [*own, *real]} | set(
        re.findall(r"^\s+(\S+) \(", run("ldconfig", "-p"), re.M)
    )
    missing = sorted({name for path in own for name in needed(path)} - there - {DRIVER})
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    plain: set[str] = set()
    for path in own:
        libraries, symbols, versioned = asked(path)
        plain |= symbols
        for version, names in versioned.items():
            if libraries.get(version) in wanted:
                wanted[libraries[version]][version] |= names
    plain = {name for name in plain if OF_CUDA.match(name)}
    plain -= set().union(*(defined(path) for path in [*own, *real]))
    for number, (name, versions) in enumerate(wanted.items()):
        # Symbols without a version are found in whichever library has them: the first one made.
        _compile(folder / name, versions, set() if number else plain)
    return missing


def _compile(target: Path, versions: dict[str, set[str]], plain: set[str]) -> None:
    names = sorted(set().union(plain, *versions.values()))
    source = Path(f"{target}.c")
    source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in names) or "int nothing;\n")
    script = Path(f"{target}.map")
    script.write_text(
        "".join(f"{version} {{ global: {'; '.join(sorted(of))}; }};\n" for version, of in versions.items())
    )
    flags = [f"-Wl,--version-script={script}"] if versions else []
    run("gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{target.name}", *flags, "-o", str(target), str(source))


if __name__ == "__main__":
    for made in make(Path(sys.argv[1])):
        print(made)
