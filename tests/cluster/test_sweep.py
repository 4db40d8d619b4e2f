"""A sweep on Slurm: six cells on two partitions, two probes at a time, and what befalls their jobs."""

from __future__ import annotations

import subprocess

import pytest

from autotune.executors.orders import JobFolder
from autotune.outcome import Oom
from tests.cluster.daemons import living, node_of, resume, set_down, sinfo
from tests.cluster.nights import GROWS, WAITS, WINNERS, Night, winners
from tests.cluster.probes import go, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_on_slurm_a_cancelled_job_a_node_set_down_and_a_job_over_its_memory_have_each_their_verdict(cluster):
    with Night(cluster) as night:
        first, second = (night.first_probe(cell) for cell in WAITS)
        wait_for(lambda: len(living()) == 2, 30)  # two probes at a time, and what was before them is gone
        subprocess.run(["scancel", first.read_submitted().id], check=True)
        wait_for(first.read_ended)
        night.first_probe(WAITS[0], 2)
        node = node_of(second.read_submitted().id)
        set_down(node)
        wait_for(second.read_ended)
        resume(node)
        go(cluster)
        document = night.ended()
        assert winners(document) == WINNERS
        assert night.causes(WAITS[0])[0] == "scheduler"
        assert night.causes(WAITS[1]) == ["node"]
        assert (first.read_ended().end, second.read_ended().end) == ("cancelled", "node")
        assert second.read_ended().nodes == (node,)
        for cell in GROWS:
            assert any(isinstance(one, Oom) for one in night.outcomes(cell))
            jobs = map(JobFolder, night.cells.glob(f"{cell}/probes/*/job*"))
            ends = [ended.end for job in jobs if (ended := job.read_ended()) is not None]
            assert "memory" in ends, "Slurm ended it, and not the device's budget"
    wait_for(lambda: not living(), 30)
    wait_for(lambda: set(sinfo().values()) == {"idle"}, 60)


def test_on_slurm_a_controller_that_is_killed_finds_the_jobs_of_all_its_cells_again(cluster):
    with Night(cluster) as night:
        found = [night.first_probe(cell).read_submitted().id for cell in WAITS]
        night.kill()
        assert set(found) <= set(living())
        night.resume()
        go(cluster)
        assert winners(night.ended()) == WINNERS
        for cell, id_ in zip(WAITS, found, strict=True):
            assert [job.read_submitted().id for job in night.attempts(cell)] == [id_], (
                "waited for, and not repeated"
            )
    wait_for(lambda: not living(), 30)
