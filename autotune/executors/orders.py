"""What a node of a cluster is asked, and what it answers: files in a folder that it and the tuner share.

Each is written whole or not at all, and read by the other side alone; only progress grows, a line at a time.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from autotune.candidate import Candidate
from autotune.executors.executor import ProbeResult
from autotune.outcome import Lost
from autotune.probe.folder import write_atomically
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.site import Site
from autotune.specs import DeviceSpec
from autotune.validation import Frozen

ORDERS: Final = 1
"""Raised with every change that a node of another version would misread."""
_Record = TypeVar("_Record", bound=Frozen)

JOB = re.compile(r"job([0-9]+)")
"""Name of the folder of an attempt."""


class JobOrder(Frozen):
    """All that a node needs for one job; `order.json`."""

    protocol: Literal[1] = ORDERS
    kind: Literal["describe", "probe", "trace"]
    """`describe` tells what device and machine there is, `probe` runs a request, `trace` traces its candidates."""
    device: DeviceSpec
    gpus: int = 1
    """Ranks on all nodes of the run, whether or not this request has as many."""
    nodes: int = 1
    """Nodes that the run's ranks are in."""
    request: ProbeRequest | None = None
    """None to describe. Its folder is filled in on the node."""
    timeout: float
    """Seconds that the work may take there."""
    traces: str = ""
    """Folder of the cache of traces; empty for that of the node's user."""

    @property
    def spans(self) -> int:
        """Nodes that the job takes: several only where the request's ranks do."""
        return self.request.nodes if self.request is not None and self.kind == "probe" else 1

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node of the job: of the request, or to describe of the run."""
        if self.request is None:
            return self.gpus // self.nodes
        return self.request.world_size // self.request.nodes

    @property
    def devices_per_node(self) -> int:
        """Devices that the job takes on each node: a trace needs none."""
        return 0 if self.kind == "trace" else self.ranks_per_node

    def digest(self) -> str:
        """Return what tells this order from others of the same run: 12 hexadecimal digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]


class Described(Frozen):
    """Answer to `describe`."""

    kind: Literal["described"] = "described"
    site: Site
    host_room: int
    """Bytes of host memory that a job of that kind has free there."""


class Probed(Frozen):
    """Answer to `probe`."""

    kind: Literal["probed"] = "probed"
    result: ProbeResult


class TracedCandidate(Frozen):
    """What came of tracing one candidate."""

    candidate: Candidate
    file: str = ""
    """Name, in the job's folder, of what `Timeline.pack` made; empty without one."""
    reason: str = ""
    """Why there is none."""
    seconds: float = 0.0
    refused: bool = False
    lost: Lost | None = None
    cached: bool = False
    composed: bool = False


class Traced(Frozen):
    """Answer to `trace`: one for each candidate."""

    kind: Literal["traced"] = "traced"
    traces: tuple[TracedCandidate, ...]


ErrorKind = Literal["input", "device busy", "no disk space", "probe", "internal"]
"""Which exception a node's work raised; `internal` is one that it should not have."""


class Failed(Frozen):
    """Answer of a node whose work raised, so that nothing follows for any candidate."""

    kind: Literal["failed"] = "failed"
    error: ErrorKind
    message: str
    traceback: str = ""
    processes: tuple[int, ...] = ()
    """Those that compute on the device, where it was busy."""


Answer = Described | Probed | Traced | Failed
ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


class Submitted(Frozen):
    """Under what the scheduler knows a job; `submitted.json`, written as soon as it is known."""

    id: str
    name: str


End = Literal["completed", "failed", "cancelled", "time limit", "memory", "node", "preempted", "gone"]
"""How a job ended, as its scheduler says: by itself, with an error, told to by somebody, at its time limit, killed for
memory, with its node, for another job; or it is no longer known, and nothing more will be."""


class JobEnded(Frozen):
    """How a job ended that left no answer; `ended.json`."""

    end: End
    nodes: tuple[str, ...] = ()
    """Where it ran, as far as the scheduler says."""
    why: str = ""
    """What the scheduler says besides, for people."""
    started: bool = False
    """Whether the node's program had begun."""
    phase: str = "start"
    """The last phase that it told of."""


@dataclass(frozen=True)
class JobFolder:
    """Every file name of one attempt at an order."""

    root: Path

    @classmethod
    def existing(cls, folder: Path) -> list[Self]:
        """Return the attempts in a folder, in their order."""
        if not folder.is_dir():
            return []
        numbers = [int(found[1]) for path in folder.iterdir() if (found := JOB.fullmatch(path.name))]
        return [cls(folder / f"job{number}") for number in sorted(numbers)]

    @property
    def number(self) -> int:
        """The attempt's number, from 1."""
        found = JOB.fullmatch(self.root.name)
        assert found is not None
        return int(found[1])

    def following(self) -> Self:
        """Return the folder of the next attempt."""
        return type(self)(self.root.with_name(f"job{self.number + 1}"))

    @property
    def order(self) -> Path:
        """What the node is asked."""
        return self.root / "order.json"

    @property
    def script(self) -> Path:
        """What the scheduler starts, where that is a script."""
        return self.root / "job.sh"

    @property
    def submitted(self) -> Path:
        """The scheduler's number of the job."""
        return self.root / "submitted.json"

    @property
    def started(self) -> Path:
        """That the node's program has begun, and where."""
        return self.root / "started"

    @property
    def progress(self) -> Path:
        """The phases that workers entered, a line each."""
        return self.root / "progress.jsonl"

    @property
    def memory(self) -> Path:
        """That the job's processes held nearly all host memory that it was granted, and how much."""
        return self.root / "memory"

    @property
    def answer(self) -> Path:
        """What came of it; the last that the node writes."""
        return self.root / "answer.json"

    @property
    def ended(self) -> Path:
        """How the job ended, where it gave no answer."""
        return self.root / "ended.json"

    @property
    def log(self) -> Path:
        """Standard output and error of the job; for people."""
        return self.root / "log"

    @property
    def probe(self) -> Path:
        """The probe's own folder while the job runs."""
        return self.root / "probe"

    @property
    def rendezvous(self) -> Path:
        """By this file ranks on several nodes find each other."""
        return self.root / "rendezvous"

    def part(self, node: int) -> Path:
        """Return the file with what came of the ranks of one of several nodes."""
        return self.root / f"node{node}.json"

    def write(self, path: Path, record: Frozen) -> None:
        """Write one of the files, whole or not at all. Raises OSError."""
        write_atomically(path, record.model_dump_json(indent=2) + "\n")

    def read_order(self) -> JobOrder | None:
        """Return what was asked; None where that was not written, or by another version."""
        return _read(JobOrder, self.order)

    def read_submitted(self) -> Submitted | None:
        """Return under what the scheduler knows the job."""
        return _read(Submitted, self.submitted)

    def read_ended(self) -> JobEnded | None:
        """Return how it ended without an answer."""
        return _read(JobEnded, self.ended)

    def read_answer(self) -> Answer | None:
        """Return the answer; None as long as there is none."""
        try:
            return ANSWER.validate_json(self.answer.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            return Failed(error="internal", message=f"{self.answer} cannot be read: {error}")


class ProgressTail:
    """Reads the lines that were appended to a job's progress since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.last: Progress | None = None
        """The newest line."""

    def read(self) -> list[Progress]:
        """Return what is new; a line that is not whole yet comes with the next look."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                found.append(Progress.model_validate_json(line))
            except ValidationError:  # a node that went down while it wrote
                continue
        if found:
            self.last = found[-1]
        return found


def _read(kind: type[_Record], path: Path) -> _Record | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
