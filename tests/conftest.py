"""What holds for every test."""

import gc
import signal
import tomllib
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.search.context import SearchContext
from autotune.search.space import Space
from autotune.specs import Goal
from tests.search.test_space import BASIC

# A shell that starts a job in the background has it ignore Ctrl-C, and nohup the end of its terminal; so would every
# tuner that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ORDER = tomllib.loads(Path(__file__).with_name("order.toml").read_text())
LONG: tuple[str, ...] = tuple(ORDER["long"])
"""Files of which `make test-long` runs the tests."""
FIRST: tuple[str, ...] = tuple(ORDER["first"])
"""Beginnings of the names of the tests that a run begins with."""


CONSUMERS = "tests/consumers"
"""What `make test-consumers` runs: only there the libraries are installed that exports are for."""
PAGE = "tests/page"
"""What `make test-page` runs: only there a browser is looked for."""
CUDA_BUILD = "tests/cuda_build"
"""What `make test-cuda-build` runs: only there torch's CUDA build is installed."""
APART = {CONSUMERS: "consumers", PAGE: "page", CUDA_BUILD: "cuda_build"}
"""Folders that only their own target runs, and its mark."""


def pytest_ignore_collect(collection_path, config):
    """Leave out what needs these libraries, unless it is asked for: there is nothing to skip."""
    asked = config.getoption("markexpr") or ""
    apart = {config.rootpath / folder: mark for folder, mark in APART.items()}
    return True if collection_path in apart and apart[collection_path] not in asked else None


def pytest_collection_modifyitems(config, items):
    """Mark the tests of the files that take long, and begin with the longest."""
    for item in items:
        for folder, mark in APART.items():
            if item.path.is_relative_to(config.rootpath / folder):
                item.add_marker(getattr(pytest.mark, mark))
        if item.path.relative_to(config.rootpath).as_posix() in LONG:
            item.add_marker(pytest.mark.long)
    items.sort(
        key=lambda item: next(
            (place for place, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST)
        )
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Keep the collector away from what was imported: its passes over torch's objects take a sixth of each trace."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def plain_environment(monkeypatch):
    """Leave out of the environment what a user may have set of devices."""
    for name in (
        "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GLIBC_TUNABLES",
        "OMP_NUM_THREADS",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def space():
    return Space.parse(BASIC, "basic.yaml")


@pytest.fixture
def context(space):
    """Return a maker of contexts of 100-token sequences on a device of 1,000 bytes."""

    def make(
        target="6400", budget=1000, tokens=100, base=None, space=space, predictor=None, limits=None, **goal
    ):
        return SearchContext(
            space=space, base=base or Candidate(), tokens_per_sample=tokens, budget=budget, predictor=predictor,
            goal=Goal(target=target, seq_len=tokens, **{"headroom": 0.0, **goal}), limits=Limits(**(limits or {})),
        )  # fmt: skip

    return make
