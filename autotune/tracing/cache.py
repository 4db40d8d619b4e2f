"""Traces on disk, so that a model is traced once for each rung and set of versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
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
    """A folder of timelines, named by all that they depend on."""

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
                timeline = Timeline.unpack(path.read_bytes())
            except (OSError, InputError):
                continue  # none, or a damaged one, which the next trace replaces
            if timeline.covers(request.candidate.micro_batch):
                return timeline
        return None

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
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(timeline.pack() if packed is None else packed)
            temporary.replace(path)
            if self._kept % PRUNED == 0:
                self._prune()
            self._kept += 1
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)

    def _path(self, request: ProbeRequest, variables: Mapping[str, str], exact: bool) -> Path | None:
        """Return the file's name; None for code of the user's own, which may change from one run to the next."""
        model = request.model
        if model.source == "function" or model.trust_remote_code:
            return None
        rung = request.candidate if exact else request.candidate.rung()
        # The allocator's options change what is reserved, not what is asked for; the loader's are the host's.
        own = {
            "candidate": rung.model_dump(mode="json", exclude={*ALLOCATOR, *LOADER}), "packages": packages(rung)
        }  # fmt: skip
        text = self.kin(request, variables) + json.dumps(own, sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.trace"

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
        files = sorted(self._folder.glob("*.trace"), key=lambda path: path.stat().st_mtime)
        for path in files[:-KEPT]:
            path.unlink(missing_ok=True)


@cache
def _code() -> str:
    """Return a digest of the code that makes traces, wherever its files lie: another version of it makes others."""
    digest = hashlib.sha256()
    for _, path in sorted(import_closure(WORKER[-1]).items()):
        digest.update(path.read_bytes())
    return digest.hexdigest()
