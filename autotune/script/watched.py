"""What the watch wrote of a user's training, one record a process, and what the runner saw of its end: typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from autotune.outcome import Phase
from autotune.validation import Frozen

SITE = Path(__file__).parent.parent / "watch" / "site"
"""The folder whose `sitecustomize` starts the watch in every Python process that has it on PYTHONPATH."""
Size = Annotated[int, Field(ge=0)]


class WatchedStep(Frozen):
    """One optimizer step, times in seconds."""

    wait: float
    """From the step before until the first forward pass."""
    micro_steps: int
    samples: int
    """Of all micro-steps, on this rank."""
    tokens: int
    whole_numbers: bool
    """Whether the batches are token ids."""
    others: tuple[float, ...]
    """From each micro-step's forward pass to the next one's."""
    last: float
    """From the last forward pass to the optimizer step."""
    optimizer: float
    loss: Annotated[float, Field(allow_inf_nan=True)] | None

    @property
    def seconds(self) -> float:
        """The whole step, with the wait for its first batch."""
        return self.wait + sum(self.others) + self.last + self.optimizer


class WatchedRefusal(Frozen):
    """An allocation that was refused, whether or not somebody caught the exception."""

    phase: Phase
    step: int
    requested: int | None
    free: int | None
    message: str


class WatchedError(Frozen):
    """The exception that ended a process."""

    kind: str
    message: str
    phase: Phase
    refused: bool
    """Whether it says that memory was refused."""
    requested: int | None
    free: int | None
    traceback: str


class WatchedCuda(Frozen):
    """What torch's caching allocator counted, in bytes."""

    peak: Size
    reserved: Size
    used: Size
    """Of the whole device, by whomever."""
    ooms: Size
    retries: Size


class WatchedMemory(Frozen):
    """Peaks of a process, in bytes."""

    baseline: Size
    """Anonymous memory before the first parameter was made."""
    peak: Size
    """Of anonymous memory."""
    data: Size
    """Of private writable memory, which RLIMIT_DATA counts."""
    tensors: Size | None = None
    """Most that tensors took from the first forward pass on, where no GPU counts it: beyond what the process held then
    beside its parameters."""
    cuda: WatchedCuda | None = None


class Loaders(Frozen):
    """The processes that load batches."""

    processes: int
    bytes: Size


class WatchedParts(Frozen):
    """Bytes of tensors on this rank."""

    parameters: Size = 0
    gradients: Size = 0
    optimizer_state: Size = 0


class NumberTypes(Frozen):
    """What a training computes in, by torch's names."""

    parameters: tuple[str, ...] = ()
    autocast: str | None = None


Ended = Literal["stopped", "end", "exception", "refused", "swallowed_oom", "no_step"]


class Watched(Frozen):
    """One process that imported torch, or ended with an exception."""

    pid: int
    program: str
    rank: int
    world: int
    ended: Ended
    """`stopped` by the watch after its steps; by itself (`end`); with an `exception`;
    without a word after memory was `refused`; because an out-of-memory error
    was caught; or because forward passes went by without an optimizer step."""
    torch: str | None
    transformers: str | None
    phase: Phase
    steps: int
    open: tuple[tuple[int | None, int | None, bool], ...]
    """Samples, tokens and whether these are whole numbers, of the micro-steps since the last optimizer step."""
    by_hand: bool
    """Whether steps were reported by the program (`autotune.report_step`)."""
    model: str | None
    """Class of the module that trains; None where none was called under grad."""
    parameters: int
    trainable: int
    parts: WatchedParts
    activations: Size
    """Most that was held beyond the baseline when a backward pass began."""
    number_types: NumberTypes
    optimizers: tuple[tuple[str, int], ...]
    """Class and steps of each."""
    records: tuple[WatchedStep, ...]
    ooms: tuple[WatchedRefusal, ...]
    error: WatchedError | None
    memory: WatchedMemory
    loaders: Loaders | None
    written: tuple[str, ...] = ()
    """Files outside of scratch folders that it opened to write, and that were there at its end."""
    seconds: float
    since: float
    """When it was written, on the monotonic clock."""

    @property
    def trains(self) -> bool:
        """Whether this is a rank of the training, and no launcher or helper."""
        return self.model is not None or self.steps > 0


class ProcessData(Frozen):
    """Private memory of a process as sampled from outside, in bytes."""

    peak: int
    recent: int
    """Over its last quarter of a second."""


class CommandEnd(Frozen):
    """How the command's first process ended."""

    exit_code: int | None = None
    signal: int | None = None
    hung: bool = False
    """It did not end although its training had."""
    seconds: float = 0.0
    failed: str = ""
    """Why it could not be started; empty where it was."""
    data: dict[str, ProcessData] = Field(default_factory=dict)
    written: tuple[str, ...] = ()
    """Files of the folder that it ran in, outside of scratch folders, that had not been there before."""


class WatchedLaunch(Frozen):
    """All that is known of one launch beside the supervisor's report."""

    processes: tuple[Watched, ...] = ()
    end: CommandEnd | None = None
    """None where the runner itself was ended."""

    @property
    def ranks(self) -> tuple[Watched, ...]:
        """The processes that trained, by rank."""
        return tuple(sorted((one for one in self.processes if one.trains), key=lambda one: one.rank))

    @property
    def written(self) -> frozenset[str]:
        """Files that were written outside of scratch folders."""
        own = () if self.end is None else self.end.written
        return frozenset(own).union(*(one.written for one in self.processes))


def read_seen(folder: Path) -> WatchedLaunch:
    """Return what watch and runner left in a folder."""
    ended = folder / "ended.json"
    return WatchedLaunch(
        processes=tuple(_load(path) for path in sorted(folder.glob("process-*.json"))),
        end=CommandEnd.model_validate_json(ended.read_text()) if ended.exists() else None,
    )


def _load(path: Path) -> Watched:
    record: Any = Watched.model_validate_json(path.read_text())
    assert isinstance(record, Watched)
    return record
