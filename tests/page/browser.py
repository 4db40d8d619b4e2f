"""A real browser (`look.mjs`), and the finished runs whose pages it is shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from autotune.errors import NothingFits
from autotune.reporting.reported import Reported
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import ArithmeticTracer, make_spec

ROOT = Path(__file__).parents[2]
MODULES = Path(os.environ.get("PAGE_MODULES", ROOT / ".venv" / "page"))
"""Where `make test-page` installs axe-core and puppeteer-core."""
WIDTHS, THEMES = (390, 768, 1440), ("light", "dark")


def made(folder: Path, device: Arithmetic, tracer: bool = True, name: str = "made") -> Reported:
    """Return a finished run."""
    spec = make_spec()
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"name": name})})
    paths = create_run(spec, folder)
    with suppress(NothingFits):  # which has a page too
        tune(spec, paths, ArithmeticExecutor(device), tracer=ArithmeticTracer(device) if tracer else None)
    return Reported.read(paths)


def browser() -> str | None:
    """Return the program, which CHROMIUM may name; None where there is none."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def looked_at(folder: Path, out: Path, pages: dict[str, Path], **options: object) -> list[dict]:
    """Return what a browser saw of pages; screenshots go to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    assert browser(), "make test-page needs Chromium; CHROMIUM names it"
    job = {
        "modules": str(MODULES), "browser": browser(), "out": str(out), "widths": WIDTHS, "themes": THEMES,
        "pages": [{"name": name, "file": str(file)} for name, file in pages.items()], **options,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("look.mjs")), str(folder / "job.json")],
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
