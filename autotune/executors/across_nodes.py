"""One probe whose ranks are on several machines: each runs its own, and the first joins what came of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from autotune.errors import ProbeError
from autotune.executors.executor import ProbeResult
from autotune.executors.orders import JobFolder
from autotune.executors.ranks import Elsewhere, RankEnded, RanksExecutor, joined
from autotune.outcome import Crash, Ok, Outcome
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.probe.ranks import RankOutcome
from autotune.validation import Frozen

CLOCKS = 1.0
"""Seconds by which the clocks of two machines may differ (they are set by NTP): what lies nearer to each other on two
machines is not told apart by time."""
LATE = 60.0
"""Seconds after its own ranks' end that the first node waits for what the others write, beyond the probe's deadline."""
LOOK = 0.1
"""Seconds between two looks for that."""


class RankRecord(Frozen):
    """What came of one rank, for another machine to read."""

    rank: int
    result: ProbeResult
    since: float
    """When it can have failed, in seconds since 1970 by its machine's clock, because monotonic clocks of two machines
    do not compare; 0 where nobody saw it."""
    stopped: bool
    """It was ended because another rank had failed."""


class NodePart(Frozen):
    """What came of the ranks of one node."""

    ranks: tuple[RankRecord, ...]
    variables: dict[str, str]

    @property
    def failed(self) -> bool:
        """Whether one of them did anything but train."""
        return any(not isinstance(record.result.answer, Ok) for record in self.ranks)


def run_across(
    executor: RanksExecutor,
    request: ProbeRequest,
    job: JobFolder,
    node: int,
    *,
    timeout: float,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbeResult | None:
    """Run one node's ranks of a request. The first node waits for the others and returns the joined result.

    The others return None: what they say is in `job.part(node)`. Raises ProbeError where a node says nothing.
    """
    others = [other for other in range(request.nodes) if other != node]
    each = request.world_size // request.nodes
    elsewhere = Elsewhere(
        node * each,
        job.rendezvous,
        lambda: any((part := read_part(job.part(other))) is not None and part.failed for other in others),
    )
    until = time.monotonic() + timeout + LATE
    ended, variables = executor.run_part(
        request, job.probe, elsewhere, timeout=timeout, on_progress=on_progress
    )
    own = NodePart(ranks=tuple(_recorded(rank) for rank in ended), variables=variables)
    job.write(job.part(node), own)
    if node:
        return None
    parts = {0: own}
    while len(parts) < request.nodes:
        for other in others:
            if other not in parts and (part := read_part(job.part(other))) is not None:
                parts[other] = part
        if len(parts) < request.nodes:
            if time.monotonic() > until:
                missing = ", ".join(str(other) for other in others if other not in parts)
                raise ProbeError(f"node {missing} of the job has not said what came of its ranks")
            time.sleep(LOOK)
    return join_parts([parts[number] for number in sorted(parts)], request.accumulation_steps)


def join_parts(parts: Sequence[NodePart], accumulation_steps: int) -> ProbeResult:
    """Return one result from all nodes' ranks. Pure.

    Where the first failures of two nodes are nearer to each other than clocks can tell, they count as simultaneous, and
    what kind of failure they are decides, as in `probe.ranks.join`. Of exceptions alone the first by these clocks
    stands: nothing better is known.
    """
    ended = [_restored(record) for part in parts for record in part.ranks]
    moments = [rank.outcome.since for rank in ended if rank.outcome.since > 0]
    if len(parts) > 1 and moments:
        first = min(moments)
        by_node = [{record.rank for record in part.ranks} for part in parts]
        leading = next(rank.outcome.rank for rank in ended if rank.outcome.since == first)
        own = next(ranks for ranks in by_node if leading in ranks)
        ended = [
            rank
            if rank.outcome.rank in own
            or _raised(rank.outcome.outcome)
            or not 0 < rank.outcome.since <= first + CLOCKS
            else RankEnded(replace(rank.outcome, since=first), rank.result)
            for rank in ended
        ]
    return joined(ended, accumulation_steps, parts[0].variables)


def read_part(path: Path) -> NodePart | None:
    """Return what a node's ranks came to; None as long as it has not said so."""
    try:
        return NodePart.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _raised(outcome: Outcome) -> bool:
    return isinstance(outcome, Crash) and outcome.reason == "exception"


def _recorded(ended: RankEnded) -> RankRecord:
    since = ended.outcome.since
    return RankRecord(
        rank=ended.outcome.rank, result=ended.result.model_copy(update={"answer": ended.outcome.outcome}),
        since=time.time() - (time.monotonic() - since) if since > 0 else 0.0, stopped=ended.outcome.stopped,
    )  # fmt: skip


def _restored(record: RankRecord) -> RankEnded:
    answer = record.result.answer
    assert not isinstance(answer, Inspection), "an inspection has one process"
    return RankEnded(RankOutcome(record.rank, answer, record.since, record.stopped), record.result)
