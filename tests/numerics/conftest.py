import sys
from functools import cache

import pytest
import torch

from tests.numerics.once import once

pytest.register_assert_rewrite("tests.numerics.compared")


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tiny tensors gain nothing from threads, and waiting for one another on a busy machine costs seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    """Return what gives the trainings of a group of `on_pairs`, each made once."""

    @cache
    def results(group):
        command = [sys.executable, "-m", "tests.numerics.on_pairs", group]
        return torch.load(once(tmp_path_factory, f"pairs-{group}.pt", lambda into: [*command, str(into)]))

    return results
