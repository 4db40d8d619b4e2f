"""Workers forked from a process that has imported what they import: a tenth of the time of one that starts cold.

Each still is a process of its own, with its own limits and pipes; `autotune.worker.warm` does the rest, as in a run.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from autotune.worker import warm

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.worker.imported"])


def start(
    request: Path, environment: Mapping[str, str], limits: Mapping[int, int]
) -> tuple[BaseProcess, int, int]:
    """Start a worker under limits (`RLIMIT_...` to bytes); return it, and where its messages and its errors come out.

    The environment is that of the first one: libraries read it while they are loaded.
    """
    read, write = _CONTEXT.Pipe(duplex=False)
    said, says = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_work, args=(str(request), write, says, dict(limits)))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        process.start()
    write.close()
    says.close()
    ends = os.dup(read.fileno()), os.dup(said.fileno())
    read.close()
    said.close()
    return process, *ends


def _work(request: str, result: Connection, errors: Connection, limits: dict[int, int]) -> None:
    os.dup2(errors.fileno(), 2)
    errors.close()
    for limit, size in limits.items():
        resource.setrlimit(limit, (size, resource.getrlimit(limit)[1]))
    warm.answer([request, str(result.fileno())])
