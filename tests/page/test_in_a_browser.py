"""Pages in a real browser: no console error, no network, no violation that axe finds, nothing wider than the window.

Run by `make test-page`, which installs axe-core and puppeteer-core beside the environment; Chromium (`chromium`, or
what CHROMIUM names) has to be there. Screenshots and all that was seen, loading times too, are left in `build/page`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.errors import NothingFits
from autotune.reporting.comparison import RunComparison, comparison_page
from autotune.reporting.page import page
from autotune.reporting.reported import Reported
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.many_trials import with_trials
from tests.fakes.runs import BIG, ArithmeticTracer, make_spec

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "page"
MODULES = Path(os.environ.get("PAGE_MODULES", ROOT / ".venv" / "page"))
WIDTHS, THEMES = (390, 768, 1440), ("light", "dark")
HOSTILE = "<script>document.title = 'broken'; console.error('ran')</script>"


def made(folder: Path, device: Arithmetic, tracer: bool = True, name: str = "made") -> Reported:
    """Return a finished run."""
    spec = make_spec()
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"name": name})})
    paths = create_run(spec, folder)
    with suppress(NothingFits):  # which has a page too
        tune(spec, paths, ArithmeticExecutor(device), tracer=ArithmeticTracer(device) if tracer else None)
    return Reported.read(paths)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    runs, folder = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("pages")
    traced, plain = made(runs, BIG), made(runs, BIG, tracer=False)
    small = Arithmetic(budget=1000, activations=2000, checkpointed=2000)
    texts = {
        "traced": page(traced), "plain": page(plain), "without-winner": page(made(runs, small, tracer=False)),
        "hostile": page(made(runs, BIG, name=HOSTILE)),
        "comparison": comparison_page(RunComparison(traced, plain)), "thousand": page(with_trials(traced, BIG, 1000)),
    }  # fmt: skip
    found = {}
    for name, text in texts.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(text, encoding="utf-8")
    return found


def looked_at(folder: Path, pages: dict[str, Path], **options: object) -> list[dict]:
    """Return what a browser saw of pages."""
    OUT.mkdir(parents=True, exist_ok=True)
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert browser, "make test-page needs Chromium; CHROMIUM names it"
    job = {
        "modules": str(MODULES), "browser": browser, "out": str(OUT), "widths": WIDTHS, "themes": THEMES,
        "pages": [{"name": name, "file": str(file)} for name, file in pages.items()], **options,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("look.mjs")), str(folder / "job.json")],
        capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(1800)
def test_pages_are_sound_in_both_themes_and_every_width(pages, tmp_path):
    seen = looked_at(tmp_path, {name: file for name, file in pages.items() if name != "thousand"})
    (OUT / "seen.json").write_text(json.dumps(seen, indent=1))
    assert len(seen) == 5 * len(WIDTHS) * len(THEMES)
    for one in seen:
        where = f"{one['name']}, {one['theme']}, {one['width']}"
        assert one["said"] == [], where
        assert all(url.startswith("file:") for url in one["asked"]), where
        assert one["violations"] == [], where
        assert one["wide"] <= 0, f"{where}: wider than the window"


@pytest.mark.timeout(600)
def test_a_thousand_trials_open(pages, tmp_path):
    """How long that takes depends on the machine, so it is told in build/page/thousand.json and not asserted."""
    (one,) = looked_at(
        tmp_path, {"thousand": pages["thousand"]}, widths=[1440], themes=["light"], quick=True, short=True
    )
    size = pages["thousand"].stat().st_size
    (OUT / "thousand.json").write_text(json.dumps({"bytes": size, **one["times"]}, indent=1))
    assert one["said"] == []
    assert size < 6e6
