"""What the tuner and a worker say to each other: one JSON document a line, over a private pipe.

The parent writes a request file; the worker answers with any number of `Progress` messages and exactly one
`Result` (or `Inspection`). Nothing is ever read from stdout or stderr, which belong to the user's code.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from autotune.candidate import Candidate
from autotune.lengths import Lengths
from autotune.outcome import Breakdown, Memory, Ok, Outcome, Phase, PhaseReport, Sample, StepTiming
from autotune.racing import Incumbent
from autotune.specs import DeviceSpeed, ModelFacts, ModelSpec
from autotune.validation import Frozen

PROTOCOL: Final = 1
"""Raised with every change that an older worker or tuner would misread."""


ProbeKind = Literal["inspect", "trace", "train", "prove"]


class ProbeRequest(Frozen):
    """All that a worker needs for one probe; stored as `request.json`."""

    protocol: Literal[1] = PROTOCOL
    kind: ProbeKind
    """`inspect` builds the model without memory, `trace` runs its steps without data, `train` measures, `prove`
    runs whole global steps."""
    model: ModelSpec
    candidate: Candidate
    also: tuple[Candidate, ...] = ()
    """Further candidates that the same worker traces (kind `trace`): importing takes longer than most traces."""
    seq_len: int
    lengths: Lengths | None = None
    """How long the sequences of the user's dataset are, for rows that are padded or packed."""
    accumulation_steps: int
    """Of a whole global step. A `train` probe runs at most two micro-steps for each optimizer step."""
    device: str
    """torch's name of the device: `cpu` or `cuda:0`."""
    world_size: int = 1
    """Ranks that train together, one a device; which rank a process is stands in its environment (RANK)."""
    nodes: int = 1
    """Machines that the ranks are in, as many in each and numbered machine by machine."""
    budget: int
    """Bytes of each rank; reported with the memory, enforced by the device."""
    headroom: float = 0.0
    """Share of the budget that must stay free, where a probe looks for how much fits."""
    time_device: bool = False
    """Time a few operators on the device too (kind `inspect`): no data sheet says what it reaches."""
    evaluation: bool = False
    """Trace a forward pass without gradients beside the training (kind `trace`)."""
    evaluation_micro_batch: int | None = None
    """The largest that is predicted to fit in evaluation, where a proof begins to look (kind `prove`)."""
    energy: bool = False
    """Read the device's counter of energy around each part of the measured steps."""
    to_beat: Incumbent | None = None
    """End as soon as it is sure that the candidate is slower than this (kind `train`); None to measure it in any case.
    An executor may measure all the same."""
    tokens_per_sample: int | None = None
    """Tokens that a row counts for, to which the batches of a user's own command are held; None does not hold them."""
    seed: int
    sample_seconds: float
    """Seconds of measured steps after warm-up (train), or of all steps (prove)."""
    sample_steps: int
    """Measured optimizer steps, at most."""
    folder: str
    """Folder of this probe: mapped files, allocator snapshot and checkpoint go here; the parent cleans it."""

    def alone(self, candidate: Candidate) -> ProbeRequest:
        """Return the request for one candidate and no other; what trains on one device, on one."""
        ranks = {} if candidate.distributed else {"world_size": 1, "nodes": 1}
        return self.model_copy(update={"candidate": candidate, "also": (), **ranks})


class TracedRung(Frozen):
    """What came of tracing one candidate."""

    candidate: Candidate
    file: str = ""
    """Name of the file in `ProbeRequest.folder` that holds what `Timeline.dump` wrote; empty without a trace."""
    reason: str = ""
    """Why it cannot be traced, and what to do."""


class Progress(Frozen):
    """The worker entered a phase; tells the parent where a probe was when it was killed."""

    type: Literal["progress"] = "progress"
    phase: Phase
    step: int = 0
    """Optimizer step, from 1; 0 before the first."""
    baseline: int | None = None
    """Sent once, before the model is built: bytes that interpreter and libraries take of the device's limit. On the CPU
    these are private and writable, touched or not: threads' stacks and OpenBLAS's buffers are most of the untouched."""
    traced: TracedRung | None = None
    """Sent as soon as a candidate was traced, or turned out not to be traceable (kind `trace`)."""


class Inspection(Frozen):
    """Answer to a request of kind `inspect`."""

    type: Literal["inspection"] = "inspection"
    facts: ModelFacts
    speed: DeviceSpeed | None = None
    """What the device reaches; None where that was not asked for, or memory was too short to tell."""


class TraceAnswer(Frozen):
    """Answer to a request of kind `trace`."""

    type: Literal["traced"] = "traced"
    rungs: tuple[TracedRung, ...]
    """One for each candidate of the request, in its order."""


class DiskFull(Frozen):
    """Answer of a worker that a full disk stopped. It says nothing of the candidate: the request is to be repeated."""

    type: Literal["disk_full"] = "disk_full"
    phase: Phase
    where: str
    """The file that could not be written, or its folder, as far as is known."""
    needed: int | None = None
    """Bytes that were to be written there; None where unknown."""
    free: int | None = None
    """Bytes that are free on that disk; None where unknown."""
    message: str
    """What the system said."""


class Result(Frozen):
    """The worker's own verdict; always its last message."""

    type: Literal["result"] = "result"
    protocol: Literal[1] = PROTOCOL
    outcome: Outcome
    since: float | None = None
    """When the worker came to it, in seconds of the machine's monotonic clock, which all processes share."""
    counted_until: float | None = None
    """Until when the device's memory is the training's, by the same clock: what the worker tries later, as larger
    evaluations, is none of it. None for as long as the probe took."""


Answer = Inspection | TraceAnswer | Result | DiskFull
"""The last message of a worker."""


def build_validators() -> None:
    """Build what validates a request and the answer to a training, which else is built where each is first used.

    A worker has them before it takes its baseline, and a server of warm workers before it forks them.
    """
    answered = (Result, Ok, Memory, Breakdown, PhaseReport, Sample, StepTiming)
    for record in (ModelSpec, Candidate, ProbeRequest, Progress, *answered):
        record.model_rebuild()


MESSAGE: TypeAdapter[Progress | Answer] = TypeAdapter(
    Annotated[Progress | Inspection | TraceAnswer | Result | DiskFull, Field(discriminator="type")]
)
