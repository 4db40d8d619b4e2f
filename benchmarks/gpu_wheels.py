"""Collect the wheels that a bare GPU machine lacks (Python 3.12, torch, transformers, no network): `make gpu-wheels`.

    python -m benchmarks.gpu_wheels [--out build/gpu-wheels] [--max-size 48]

Versions are those of constraints.txt. What cannot be done without comes first; what would make the folder larger than
`--max-size` (MiB) is left out, and said. `benchmarks/gpu_evidence.py --wheels` takes them from there.

Target: all that autotune itself needs is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.verdict import unmeasured, verdict

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "3.12"
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
NEEDED = (
    "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions", "ruamel.yaml",
    "nvidia-ml-py", "psutil", "typer", "annotated-doc", "shellingham", "click", "rich", "markdown-it-py", "mdurl",
    "pygments", "optuna", "colorlog", "alembic", "mako", "sqlalchemy", "greenlet", "tqdm", "pyyaml", "pandas",
)  # fmt: skip
"""What autotune imports, with what that imports; the machine has much of it, in versions of its own."""
ASSUMED = frozenset(
    {"typer", "annotated-doc", "shellingham", "click", "rich", "markdown-it-py", "mdurl", "pygments",
     "optuna", "colorlog", "alembic", "mako", "sqlalchemy", "greenlet", "tqdm", "pyyaml", "pandas"}
)  # fmt: skip
"""Of these, what comes with transformers, and what no case needs (optuna, pandas); `--all` brings it too."""
WANTED = (
    "pytest",
    "pytest-timeout",
    "pluggy",
    "iniconfig",
    "liger-kernel",
    "torchao",
    "plotly",
    "narwhals",
    "bitsandbytes",
)
"""For more of the evidence, the most valuable first."""


def pins(text: str) -> dict[str, str]:
    """Return the pinned versions of a constraints file, by the package's name in small letters with dashes."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    found = (line.split("==", 1) for line in lines if "==" in line)
    return {plain(name): version for name, version in found}


def plain(name: str) -> str:
    """Return a package's name as packages are compared."""
    return name.lower().replace("_", "-").replace(".", "-")


def download(name: str, version: str, folder: Path) -> Path | None:
    """Download one wheel without what it needs; None where the registry has none for such a machine."""
    before = set(folder.glob("*.whl"))
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version",
         PYTHON, *platforms, "--dest", str(folder), f"{name}=={version}"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    new = sorted(set(folder.glob("*.whl")) - before)
    return new[0] if done.returncode == 0 and new else None


def collect(
    names: list[str],
    versions: dict[str, str],
    folder: Path,
    most: int,
    fetch: Callable[[str, str, Path], Path | None] = download,
) -> tuple[list[Path], dict[str, str]]:
    """Fill an empty folder with wheels up to `most` bytes; return them, and what was left out with the reason."""
    found: list[Path] = []
    left_out: dict[str, str] = {}
    total = 0
    for name in names:
        version = versions.get(plain(name))
        if version is None:
            left_out[name] = "constraints.txt does not name it"
            continue
        wheel = fetch(name, version, folder)
        if wheel is None:
            left_out[name] = f"there is no wheel of {version} for Python {PYTHON} on Linux"
            continue
        size = wheel.stat().st_size
        if total + size > most:
            wheel.unlink()
            left_out[name] = f"{size / 2**20:.1f} MiB are more than is left of --max-size"
            continue
        total += size
        found.append(wheel)
    return found, left_out


def main() -> int:
    """Collect, and say what there is and what is not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-wheels")
    parser.add_argument("--max-size", type=float, default=48.0, help="MiB of all together")
    parser.add_argument("--all", action="store_true", help="also what such machines usually have")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for wheel in options.out.glob("*.whl"):
        wheel.unlink()
    needed = [name for name in NEEDED if options.all or name not in ASSUMED]
    versions = pins((ROOT / "constraints.txt").read_text("utf-8"))
    found, left_out = collect([*needed, *WANTED], versions, options.out, int(options.max_size * 2**20))
    if not found:
        raise unmeasured("gpu_wheels", f"no wheel could be had: {left_out}")
    for wheel in found:
        print(f"{wheel.stat().st_size / 2**20:6.1f} MiB  {wheel.name}")
    for name, why in left_out.items():
        print(f"left out  {name}: {why}")
    print(f"{sum(wheel.stat().st_size for wheel in found) / 2**20:.1f} MiB in {options.out}")
    return verdict([f"{name} is there: {why}" for name, why in left_out.items() if name in needed])


if __name__ == "__main__":
    sys.exit(main())
