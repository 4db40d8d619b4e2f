"""The server of warm probes: imports what a worker has imported when it takes its baseline, then forks workers.

`python -P -m autotune.worker.warm IMPORTS CONTROL LIFELINE`: JSON that says what to import (`probe.warm`), a socket for
orders, and a pipe that is closed when the tuner is gone. A process that has computed anything cannot be forked: its
children wait for threads that they do not have (OpenMP's, autograd's). So this one only imports; it runs no code of a
user's or of a model's. When it serves, it has no thread that a fork would miss and no device open, and it says so where
that cannot be had.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.probe.fork_server import die_with_the_tuner, serve, write_initial
from autotune.probe.launch import MARK
from autotune.probe.protocol import build_validators
from autotune.worker import __main__ as worker
from autotune.worker import openblas
from autotune.worker.measuring.process_memory import own_data

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
"""What a process has open that has called a GPU's driver; no child could use the device any more. The driver's library
may be loaded: torch's CUDA build loads it with its own."""
_SERVE_FORKS = {"jemalloc_bg_thd"}
"""Threads, as the kernel names them, that a child starts again when it needs them. jemalloc's returns memory behind
what frees it; its own handlers around a fork see to its locks, and to the thread in the child. Wheels that bring a
jemalloc (pyarrow's) may start it while they are loaded."""
_THREADS_END = 5.0
"""Seconds that threads which were told to end get until the kernel no longer shows them."""


def preload(model: dict[str, Any] | None, distributed: bool) -> None:
    """Import what `Probe` imports before it takes the baseline, all of it, and no more.

    With less, a worker would take longer; with more, its baseline would be another than a cold worker's.
    """
    build_validators()
    import torch
    import torch._dynamo  # noqa: F401 - the first optimizer imports it

    import autotune.worker.measuring.memory_meter
    import autotune.worker.model

    if model is not None and "model_type" in model:
        from autotune.worker.model_from_config import import_class

        with contextlib.suppress(Exception):  # what is wrong with a configuration is for the worker to say
            import_class(model["model_type"], model.get("architectures") or ())
    if distributed:
        import autotune.worker.techniques.sharding.fully_sharded
        import autotune.worker.techniques.sharding.replicated
    import autotune.worker.build.assembly
    import autotune.worker.measuring.measure
    import autotune.worker.measuring.prove  # noqa: F401


def refusal() -> str:
    """Return why this process must not be forked for work; empty where it may be."""
    try:
        # By which a tuner sees the end of a process that is not its child.
        os.close(os.pidfd_open(os.getpid()))
        write_initial(MARK, os.environ[MARK])  # by which it finds what a killed supervisor left
    except (OSError, LookupError, ValueError) as error:
        return f"this machine's kernel does not do what forks need: {error}"
    for path in openblas.loaded():
        try:
            openblas.threads(path)
        except LookupError as error:
            return f"threads cannot be started again in a fork: {error}"
    child = os.fork()  # libraries that start threads while they are loaded (OpenBLAS) end them before a fork
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    until = time.monotonic() + _THREADS_END
    while threads := _other_threads():
        if time.monotonic() > until:
            return f"imports alone have started threads that are still there: {', '.join(threads)}"
        time.sleep(0.005)
    touched = (path for path in _open_files() if path.startswith(_DEVICES))
    return next((f"imports alone have opened {path}" for path in touched), "")


def answer(argv: Sequence[str]) -> None:
    """Do the work of a cold worker with the same command line."""
    openblas.restart()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # or all forks would draw the same; Python's own generator sees to itself
    request, descriptor = argv[-2:]
    sys.argv = [str(worker.__file__), request, descriptor]
    worker.run(request, int(descriptor))


def main(imports: str, control: int, lifeline: int) -> None:
    """Import, look whether this may be forked, and serve until the tuner is gone."""
    die_with_the_tuner(lifeline)
    preload(**json.loads(imports))
    refused = refusal()
    gc.freeze()  # else the first collection of a child would write to every object, and copy its page
    serve(socket.socket(fileno=control), lifeline, {"data": own_data(), "refused": refused}, answer)


def _other_threads() -> list[str]:
    """Return the names that the kernel has of all threads but the first that a fork would miss."""
    found = []
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # that has ended meanwhile
            if int(entry.name) != os.getpid():
                found.append((entry / "comm").read_text("utf-8", errors="replace").strip())
    return sorted(name for name in found if name not in _SERVE_FORKS)


def _open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this very look
            found.append(str(entry.readlink()))
    return found


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
