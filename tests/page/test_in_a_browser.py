"""Pages in a real browser: no console error, no network, no violation that axe finds, nothing wider than the window.

Run by `make test-page`, which installs axe-core and puppeteer-core beside the environment; Chromium (`chromium`, or
what CHROMIUM names) has to be there. Screenshots and all that was seen are left in `build/page`. How long a page takes
to open depends on the machine, so `benchmarks/page_opening.py` measures it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.reporting.comparison import RunComparison, comparison_page
from autotune.reporting.page import page
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.many_trials import with_trials
from tests.fakes.runs import BIG
from tests.page.browser import ROOT, THEMES, WIDTHS, looked_at, made

OUT = ROOT / "build" / "page"
HOSTILE = "<script>document.title = 'broken'; console.error('ran')</script>"


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


@pytest.mark.timeout(1800)
def test_pages_are_sound_in_both_themes_and_every_width(pages, tmp_path):
    seen = looked_at(tmp_path, OUT, {name: file for name, file in pages.items() if name != "thousand"})
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
    (one,) = looked_at(
        tmp_path, OUT, {"thousand": pages["thousand"]}, widths=[1440], themes=["light"], quick=True, short=True
    )  # fmt: skip
    assert one["said"] == []
    assert pages["thousand"].stat().st_size < 6e6
