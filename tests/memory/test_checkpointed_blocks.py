"""The timeline of any number of checkpointed blocks, composed of a trace of another, against a trace of its own."""

from pathlib import Path

import pytest

from autotune.timeline.checkpointed import numbers_covered
from tests.fresh_process import run_alone
from tests.memory.on_checkpointed_blocks import check_every_number, of


def test_every_number_is_to_the_byte_what_a_trace_of_it_is():
    check_every_number("gpt2", "cpu", checkpointing="full", precision="fp32")


@pytest.mark.timeout(900)  # five families in one process
def test_every_number_is_so_on_cuda():
    run_alone(Path(__file__).with_name("on_checkpointed_blocks.py"))


def test_a_trace_of_all_blocks_checkpointed_tells_of_no_other_number():
    assert not numbers_covered(of("gpt2", "cpu", "all", checkpointing="full"))
