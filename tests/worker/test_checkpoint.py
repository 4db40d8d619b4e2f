"""The checkpoint of a proof."""

import errno
import os

import pytest

from autotune.worker.build.assembly import assemble
from autotune.worker.errors import DiskRefused
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.prove import CHECKPOINT, save
from tests.data.requests import family, request


def test_a_checkpoint_that_the_disk_refuses_says_how_much_it_takes(tmp_path):
    """/dev/full refuses every write as a full disk does."""
    training = assemble(request(family("gpt2"), tmp_path, precision="fp32"))
    phases = Phases(lambda *_: None)
    (tmp_path / CHECKPOINT).symlink_to("/dev/full")
    with pytest.raises(DiskRefused) as caught:
        save(training, tmp_path, phases)
    assert caught.value.reason == os.strerror(errno.ENOSPC)
    assert caught.value.needed == 4 * sum(parameter.numel() for parameter in training.model.parameters())
    assert not list(tmp_path.iterdir())
    assert save(training, tmp_path, phases) > caught.value.needed, "and goes well afterwards"
    training.close()
