"""Whose fault it is that something cannot be written, and several problems at once."""

from __future__ import annotations

import errno

import pytest

from autotune.errors import DiskError, InputError, all_of, unwritable
from autotune.exit_codes import ExitCode


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_is_the_machine_s_fault_and_says_what_to_do(number):
    found = unwritable("--html x.html cannot be written", OSError(number, "why"), "html")
    assert isinstance(found, DiskError)
    assert found.exit_code == ExitCode.MACHINE
    assert str(found).startswith("--html x.html cannot be written: why; ")


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOTDIR, errno.ENAMETOOLONG])
def test_a_place_that_nothing_can_be_written_to_is_the_fault_of_who_named_it(number):
    found = unwritable("--html x.html cannot be written", OSError(number, "why"), "html")
    assert isinstance(found, InputError)
    assert found.about == ("html",)
    assert found.exit_code == ExitCode.INPUT


def test_the_problems_of_all_parts_are_told_at_once():
    def refuse(*problems):
        raise InputError(problems)

    assert all_of(lambda: 1, lambda: "a") == (1, "a")
    with pytest.raises(InputError) as caught:
        all_of(lambda: refuse("a", "b"), lambda: 1, lambda: refuse("c"))
    assert caught.value.problems == ("a", "b", "c")
