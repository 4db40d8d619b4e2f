"""Launching probes warm: forked from a server that has imported the libraries, or cold where that cannot be.

What the launches promise is the same (`launch.launch`): protocol, verdicts, limits, and that nothing is left. Only the
imports are spared, which are most of a small probe's time.

A server holds what a cold worker has imported when it takes its baseline, and nothing else: so a forked worker has the
memory of a cold one, and the same budget refuses the same candidate. Hence one server for each environment (allocators
and thread pools read theirs while they are loaded) and kind of model. It never imports a user's code or computes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Self

from autotune.interruption import shielded
from autotune.options import LauncherName
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import MARK, WORKER, Launcher, ended_by_all, launch, worker_environment
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.probe.warm_server import NotAwaited, ServerLost, WarmServer
from autotune.specs import ModelSpec
from autotune.units import MIB, format_bytes

SERVER = (sys.executable, "-P", "-m", "autotune.worker.warm")
"""Command line of a server, before what it is to import and its two descriptors. `-P` as for the worker."""
GPUS = "CUDA_VISIBLE_DEVICES"
"""The driver reads it when it starts, which it does not in a server: so ranks on several GPUs share one."""
OWN = (
    GPUS, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "AUTOTUNE_RENDEZVOUS",
)  # fmt: skip
"""Variables that are read when a training starts, not while libraries are loaded, so that each probe has its own."""
KEPT = 3
"""Servers at most: of those that launch nothing, the one longest unused ends for a new one. Each takes some 200 MiB of
its own; that of a probe is shared with the probe."""
LEAST = 64 * MIB
"""Bytes that a budget must leave beyond what a server holds: with less a worker could not even say that it is too
little, which the cold one is built for."""


class _Key(NamedTuple):
    """What tells servers apart."""

    model: str
    """The kind of model whose code is imported, as JSON."""
    distributed: bool
    """Whether what shards a training is imported."""
    variables: frozenset[tuple[str, str]]
    """The environment."""


class WarmLauncher:
    """A `Launcher` with servers of its own, which end with it; also a context manager. For several threads."""

    def __init__(self, server: Sequence[str] = SERVER, worker: Sequence[str] = WORKER) -> None:
        """`server` is the program that serves, `worker` the one that does the same cold."""
        self._command = tuple(server)
        self._worker = tuple(worker)
        self._lock = threading.Lock()
        self._servers: dict[_Key, WarmServer] = {}
        self._refused: dict[_Key, str] = {}
        """Why what stands here is not served: its server came to no good."""
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(
        self,
        request: ProbeRequest,
        folder: ProbeFolder,
        *,
        environment: Mapping[str, str],
        data_limit: int | None,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
        on_start: Callable[[], None] | None = None,
        cancel: int | None = None,
    ) -> Report:
        """Launch warm where that can be, else cold; `Report.cold_because` says why. As `launch.launch` otherwise.

        What the first probe waits for its server is in its seconds, not in its timeout.
        """
        began = time.monotonic()
        why = unserved(request)
        for _ in range(0 if why else 2):  # a server that died since it was last used is replaced once
            key = self._key(request, environment)
            try:
                server = self._server(key)
            except (ServerLost, OSError) as lost:
                why = str(lost)
                break
            try:
                with ended_by_all(server.kill):
                    held = server.ready(timeout, cancel)["data"]
                assert isinstance(held, int)
                if data_limit is not None and data_limit < held + LEAST:
                    why = (
                        f"a budget of {format_bytes(data_limit)} leaves too little beyond what libraries take"
                    )
                    break
                return launch(
                    request, folder, environment=environment, data_limit=data_limit, timeout=timeout,
                    on_progress=on_progress, on_start=on_start, cancel=cancel, worker=self._worker,
                    start=server.start, began=began,
                )  # fmt: skip
            except NotAwaited as cancelled:
                why = str(cancelled)
                break
            except ServerLost as lost:
                why = str(lost)
                if not self._drop(key, server, why):
                    break
            finally:
                with self._lock:
                    server.launches -= 1
        return launch(
            request, folder, environment=environment, data_limit=data_limit, timeout=timeout,
            on_progress=on_progress, on_start=on_start, cancel=cancel, worker=self._worker, began=began,
            cold_because=why or "",
        )  # fmt: skip

    def close(self) -> None:
        """End all servers; what is launched from now on is cold."""
        with self._lock:
            self._closed = True
            while self._servers:
                self._servers.popitem()[1].end()

    def _key(self, request: ProbeRequest, environment: Mapping[str, str]) -> _Key:
        own = {*OWN, MARK}
        variables = worker_environment(environment).items()
        wanted = _Key(
            model=json.dumps(_kind_of(request.model)),
            distributed=request.kind != "trace" and request.candidate.distributed,
            variables=frozenset((name, value) for name, value in variables if name not in own),
        )
        if request.kind == "trace":
            # Nothing is computed or counted, so what else a server holds is all the same.
            with self._lock:
                for key in self._servers:
                    if key.model == wanted.model and wanted.variables <= key.variables:
                        return key
        return wanted

    def _server(self, key: _Key) -> WarmServer:
        with self._lock:
            if self._closed:
                raise ServerLost("the servers of warm probes have ended")
            if key in self._refused:
                raise ServerLost(self._refused[key])
            if key not in self._servers:
                while len(self._servers) >= KEPT:
                    idle = [other for other in self._servers if not self._servers[other].launches]
                    if not idle:
                        raise ServerLost(
                            f"{KEPT} servers of warm probes are at work, each for another environment"
                        )
                    oldest = min(idle, key=lambda other: self._servers[other].used)
                    self._servers.pop(oldest).end()
                wanted = json.dumps({"model": json.loads(key.model), "distributed": key.distributed})
                with shielded():  # a process that was started is known, so that it can be ended
                    command = (*self._command, wanted)
                    environment = {**dict(key.variables), GPUS: ""}
                    self._servers[key] = WarmServer(command, environment, MARK, OWN)
            server = self._servers[key]
            server.used = time.monotonic()
            server.launches += 1
            return server

    def _drop(self, key: _Key, server: WarmServer, why: str) -> bool:
        """End a server that did not serve; return whether another may be tried: not where it never came so far."""
        with self._lock:
            if self._servers.get(key) is server:
                del self._servers[key]
                server.end()
            if not server.served:
                self._refused[key] = why
            return server.served


def launcher_by_name(name: LauncherName) -> AbstractContextManager[Launcher]:
    """Return the launcher of a name, which is closed with the context."""
    return WarmLauncher() if name == "warm" else nullcontext(launch)


def unserved(request: ProbeRequest) -> str | None:
    """Return why a request is never served by a fork; None where it may be."""
    candidates = (request.candidate, *request.also)
    if request.kind == "prove":
        return "a proof starts as training will"
    if any(candidate.engine == "deepspeed" for candidate in candidates):
        return "DeepSpeed looks for devices and builds extensions while it is loaded"
    # Its trace replaces what asks. Some models import the kernel only if there is a GPU while they are imported.
    if request.kind != "trace" and any(one.attention == "flash_attention_2" for one in candidates):
        return (
            "transformers looks for a GPU while a model is imported, sees none in a server, and remembers it"
        )
    return None


def _kind_of(model: ModelSpec) -> dict[str, object] | None:
    """Return what tells whose code a server imports; None for a user's function, which nobody but its worker runs."""
    if model.source == "function":
        return None
    config = model.config or {}
    return {name: config[name] for name in ("model_type", "architectures") if name in config}
