"""The program that a job runs on a compute node: `python -m autotune.executors.node FOLDER`.

It does there what an executor does on this machine, with that node's device and facts, and leaves the answer in the
folder. Whoever asked may be gone meanwhile: the answer waits. A node that is told to end (SIGTERM: cancelled,
preempted, out of time) ends its probe and leaves none, so that nothing is taken for a verdict.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from autotune.devices.device import DeviceBusy
from autotune.devices.find import find
from autotune.errors import InputError, NoDiskSpace, ProbeError
from autotune.executors.across_nodes import run_across
from autotune.executors.find import find_executor
from autotune.executors.orders import (
    Answer,
    Described,
    ErrorKind,
    Failed,
    JobFolder,
    JobOrder,
    Probed,
    Traced,
    TracedCandidate,
)
from autotune.executors.ranks import RanksExecutor
from autotune.interruption import Interruption, exit_code, listening
from autotune.probe.classify import NEAR_LIMIT
from autotune.probe.folder import write_atomically
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import Progress
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from autotune.units import MIB

NODE = "SLURM_NODEID"
"""Which of a job's nodes this is, where its scheduler is Slurm and starts the program on each."""
GRANTED = "SLURM_MEM_PER_NODE"
"""MiB of host memory that Slurm grants the job on each node."""
SAMPLE = 0.25
"""Seconds between two looks at how much of that is taken."""


def main(arguments: list[str]) -> int:
    """Do what the folder's order says; return the exit code of the program."""
    parser = argparse.ArgumentParser(prog="python -m autotune.executors.node", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder that holds order.json")
    parser.add_argument("--node", type=int, default=None, help="which of the job's nodes this is")
    given = parser.parse_args(arguments)
    node = int(os.environ.get(NODE, "0")) if given.node is None else given.node
    try:
        with listening():
            serve(JobFolder(given.folder), node)
    except Interruption as asked:
        print(f"ended by {asked}", file=sys.stderr)
        return exit_code(asked)
    return 0


def serve(job: JobFolder, node: int = 0, launcher: Launcher = launch) -> None:
    """Do what an order says and write the answer; the first of several nodes writes it for all.

    Raises what asks for the end (Interruption, KeyboardInterrupt) and OSError, where the folder cannot be written.
    """
    order = job.read_order()
    if order is None:
        answer: Answer | None = Failed(
            error="internal",
            message=f"{job.order} is no order that this version of autotune understands; the node's Python has to have "
            "the autotune that the tuner has",
        )
    else:
        if node == 0:
            write_atomically(job.started, f"{socket.gethostname()} {os.getpid()}\n")
        try:
            with memory_watched(job, int(os.environ.get(GRANTED, "0")) * MIB):
                answer = _answer(order, job, node, launcher)
        except Exception as error:  # noqa: BLE001 - it is told where the work was asked for
            answer = _failed(error)
    if answer is not None and (node == 0 or isinstance(answer, Failed)):
        job.write(job.answer, answer)


def _answer(order: JobOrder, job: JobFolder, node: int, launcher: Launcher) -> Answer | None:
    cache = TraceCache(Path(order.traces)) if order.traces else TraceCache()
    tracer = LocalTracer(cache, launcher, ranks=order.ranks_per_node)
    with job.progress.open("a", encoding="utf-8") as said:

        def tell(progress: Progress) -> None:
            said.write(progress.model_dump_json() + "\n")
            said.flush()

        on_progress = tell if node == 0 else None
        if order.kind == "trace":
            return _traced(order, job, tracer, tell)
        executor = find_executor(order.device, tracer, order.ranks_per_node, launcher=launcher)
        if order.kind == "describe":
            room = executor.offload_room(job.root, "host")
            if granted := int(os.environ.get(GRANTED, "0")) * MIB:  # to all ranks of the node
                room = min(room, granted // order.ranks_per_node)
            return Described(site=executor.describe(), host_room=room)
        assert order.request is not None
        if order.spans > 1:
            ranks = executor
            if not isinstance(ranks, RanksExecutor):  # one on each node
                ranks = RanksExecutor([find(order.device)], launcher)
            result = run_across(
                ranks, order.request, job, node, timeout=order.timeout, on_progress=on_progress
            )
        else:
            result = executor.run(order.request, job.probe, timeout=order.timeout, on_progress=on_progress)
        if result is None:
            return None
        return Probed(result=result.model_copy(update={"site": executor.describe()}))


@contextmanager
def memory_watched(job: JobFolder, granted: int) -> Iterator[None]:
    """Note meanwhile whether this process and all below it hold nearly the memory that the job was granted (bytes).

    Where a scheduler has no cgroups it looks for itself how much memory a job holds, kills all of it, and calls that a
    failure like any other. The note is what tells it from one, as the supervisor's samples do for a refused allocation.
    """
    done = threading.Event()

    def look() -> None:
        most = NEAR_LIMIT * granted
        while not done.wait(SAMPLE):
            if (held := _held()) >= most:
                most = 1.01 * held
                write_atomically(job.memory, f"{held}\n")

    watcher = threading.Thread(target=look, name="memory", daemon=True)
    if granted:
        watcher.start()
    try:
        yield
    finally:
        done.set()


def _held() -> int:
    """Return the resident bytes of this process and all below it, counted as schedulers do: each by itself."""
    this = psutil.Process()
    held = 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # gone by now
            held += process.memory_info().rss
    return held


def _traced(
    order: JobOrder, job: JobFolder, tracer: LocalTracer, on_progress: Callable[[Progress], None]
) -> Traced:
    assert order.request is not None
    found = tracer.trace(order.request, job.probe, timeout=order.timeout, on_progress=on_progress)
    told = []
    for number, (candidate, trace) in enumerate(found.items()):
        name = ""
        if trace.timeline is not None:
            name = f"timeline{number}"
            path = job.root / name
            path.write_bytes(trace.timeline.pack())
        told.append(
            TracedCandidate(
                candidate=candidate, file=name, reason=trace.reason, seconds=trace.seconds, refused=trace.refused,
                lost=trace.lost, cached=trace.cached, composed=trace.composed,
            )
        )  # fmt: skip
    return Traced(traces=tuple(told))


def _failed(error: Exception) -> Failed:
    kinds: tuple[tuple[type[Exception], ErrorKind], ...] = (
        (DeviceBusy, "device busy"), (NoDiskSpace, "no disk space"), (InputError, "input"), (ProbeError, "probe"),
    )  # fmt: skip
    kind: ErrorKind = next((name for one, name in kinds if isinstance(error, one)), "internal")
    said = "".join(traceback.format_exception(error)) if kind == "internal" else ""
    busy = error.processes if isinstance(error, DeviceBusy) else ()
    return Failed(error=kind, message=str(error) or repr(error), traceback=said, processes=busy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
