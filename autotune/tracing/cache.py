"""Traces on disk, so that a model is traced once for each rung and set of versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from autotune.cache_folder import cache_folder
from autotune.candidate import ALLOCATOR, LOADER, Candidate
from autotune.environment import installed, processor
from autotune.errors import InputError
from autotune.probe.launch import WORKER
from autotune.probe.protocol import ProbeRequest
from autotune.techniques.check import packages
from autotune.timeline.timeline import Timeline
from autotune.tracing.import_closure import import_closure

KEPT = 1024
"""Traces kept, the newest: a model's whole ladder is some hundred of 20 to 200 KiB each."""
PRUNED = 32
"""Of so many traces that are stored one looks for what is too old: all files are looked at then."""

_IRRELEVANT = {
    "protocol", "kind", "also", "accumulation_steps", "budget", "headroom", "seed", "sample_seconds", "sample_steps",
    "folder", "evaluation_micro_batch",
}  # fmt: skip
"""Fields of a request that change nothing in its trace. All others, also those yet to come, are in the key."""


NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class TraceCache:
    """A folder of timelines, named by all that they depend on; those of one ladder lie in a folder of their own.

    A file holds the candidate, as a line of JSON, and then its timeline.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "traces"
        self._kept = 0
        self._shared: tuple[tuple[ProbeRequest, Mapping[str, str]], str] | None = None

    def find(self, request: ProbeRequest, variables: Mapping[str, str] = NO_VARIABLES) -> Timeline | None:
        """Return the timeline of the request's rung, where there is one that covers its micro-batch.

        It was traced under `variables`, which say how many threads compute: on the cpu device some kernels take room
        for each.
        """
        for exact in (False, True):
            path = self._path(request, variables, exact)
            if path is None:
                return None
            try:
                timeline = Timeline.unpack(path.read_bytes().partition(b"\n")[2])
            except (OSError, InputError):
                continue  # none, or a damaged one, which the next trace replaces
            if timeline.covers(request.candidate.micro_batch):
                return timeline
        return None

    def kindred(
        self,
        request: ProbeRequest,
        variables: Mapping[str, str] = NO_VARIABLES,
        known: Collection[Candidate] = (),
    ) -> Iterator[tuple[Candidate, Timeline]]:
        """Yield all rungs that are here of a request's model and goal, whoever traced them, with their timelines.

        Left out are those that hold for one micro-batch alone, and rungs that are `known`: to read hundreds takes
        seconds. Loader and allocator, which no trace depends on, are those of the request's candidate.
        """
        own = {name: getattr(request.candidate, name) for name in (*ALLOCATOR, *LOADER)}
        kinds = request.alone(Candidate()), request.alone(Candidate(sharding="ddp"))
        for folder in dict.fromkeys(self._ladder(one, variables) for one in kinds):
            for path in sorted(folder.glob("*.trace")) if folder is not None else ():
                try:
                    head, _, packed = path.read_bytes().partition(b"\n")
                    candidate = Candidate.model_validate_json(head).model_copy(update=own)
                    if candidate in known:
                        continue
                    timeline = Timeline.unpack(packed)
                except (OSError, ValueError, InputError):
                    continue
                # Under another name is what other versions of its libraries traced.
                if path == self._path(request.alone(candidate), variables, exact=False):
                    yield candidate, timeline

    def keep(
        self,
        request: ProbeRequest,
        timeline: Timeline,
        packed: bytes | None = None,
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        """Store a timeline; `packed` is the same, if at hand. A disk that refuses costs only the next trace."""
        path = self._path(request, variables, timeline.exact is not None)
        if path is None:
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            head = request.candidate.rung().model_dump_json().encode()
            temporary.write_bytes(head + b"\n" + (timeline.pack() if packed is None else packed))
            temporary.replace(path)
            if self._kept % PRUNED == 0:
                self._prune()
            self._kept += 1
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)

    def _path(self, request: ProbeRequest, variables: Mapping[str, str], exact: bool) -> Path | None:
        """Return the file; None for code of the user's own, which may change from one run to the next."""
        folder = self._ladder(request, variables)
        if folder is None:
            return None
        rung = request.candidate if exact else request.candidate.rung()
        # The allocator's options change what is reserved, not what is asked for; the loader's are the host's.
        own = {
            "candidate": rung.model_dump(mode="json", exclude={*ALLOCATOR, *LOADER}), "packages": packages(rung)
        }  # fmt: skip
        return folder / f"{_digest(json.dumps(own, sort_keys=True))}.trace"

    def _ladder(self, request: ProbeRequest, variables: Mapping[str, str]) -> Path | None:
        """Return the folder of all rungs of a request's model and goal; None as for a file."""
        if request.model.source == "function" or request.model.trust_remote_code:
            return None
        return self._folder / _digest(self.kin(request, variables))

    def kin(self, request: ProbeRequest, variables: Mapping[str, str]) -> str:
        """Return what the traces of a request depend on beside its candidates: the same for a whole ladder."""
        bare = request.model_copy(update={"candidate": Candidate(), "also": ()})
        if self._shared is None or self._shared[0] != (bare, variables):
            device = request.device.partition(":")[0]
            depends = {
                **bare.model_dump(mode="json", exclude={*_IRRELEVANT, "candidate"}),
                "model": request.model.model_dump(mode="json", exclude={"name"}),
                "device": device,
                "processor": [processor(), *variables.items()] if device == "cpu" else None,
                "torch": installed("torch"),
                "transformers": installed("transformers"),
                "code": _code(),
            }
            self._shared = (bare, variables), json.dumps(depends, sort_keys=True)
        return self._shared[1]

    def _prune(self) -> None:
        files = sorted(self._folder.glob("*/*.trace"), key=lambda path: path.stat().st_mtime)
        for path in files[:-KEPT]:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others are in it
                path.parent.rmdir()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _code() -> str:
    """Return a digest of the code that makes traces, wherever its files lie: another version of it makes others."""
    digest = hashlib.sha256()
    for _, path in sorted(import_closure(WORKER[-1]).items()):
        digest.update(path.read_bytes())
    return digest.hexdigest()
