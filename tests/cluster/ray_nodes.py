"""A real Ray cluster of two nodes on this machine; `ray stop` is never used, because it ends everybody's."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from autotune.executors.orders import JobFolder
from tests.cluster.daemons import free_ports

PATIENCE = 180.0
SMALL = ("--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats")


class RayNodes:
    """The nodes, each a `ray start --block` with all that it started."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Start the head."""
        port = self.address.partition(":")[2]
        head = "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self._root}/ray"
        self._start(*head)

    def _start(self, *options: str) -> None:
        ray = Path(sys.executable).parent / "ray"
        said = self._root / f"ray{len(self.nodes)}.log"
        with said.open("wb") as log:
            node = subprocess.Popen(
                [str(ray), "start", "--block", *options, *SMALL, "--node-ip-address=127.0.0.1"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.nodes.append(node)
        until = time.monotonic() + PATIENCE
        while "Ray runtime started" not in said.read_text():
            assert node.poll() is None, said.read_text()[-3000:]
            assert time.monotonic() < until, said.read_text()[-3000:]
            time.sleep(0.1)

    def join(self) -> None:
        """Have another node join."""
        self._start(f"--address={self.address}", '--resources={"second": 1}')

    def kill(self, node: int) -> None:
        """Kill a node with all that runs on it, as a power cut does."""
        for process in self._of(self.nodes.pop(node)):
            with suppress(psutil.Error):
                process.kill()

    def end(self) -> None:
        """End all nodes, and what they started."""
        for node in reversed(self.nodes):
            every = self._of(node)
            with suppress(ProcessLookupError):
                node.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                node.wait(20)
            for process in every:
                with suppress(psutil.Error):
                    process.kill()
            node.wait()

    @staticmethod
    def _of(node: subprocess.Popen[bytes]) -> list[psutil.Process]:
        with suppress(psutil.Error):
            this = psutil.Process(node.pid)
            return [this, *this.children(recursive=True)]
        return []


@contextmanager
def ray_nodes(root: Path):
    """Start the nodes below a folder, and end them; who has the token in this process's environment may use them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # as on a machine that is nobody else's; 15 by default
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        nodes = RayNodes(root)
        try:
            nodes.begin()
            nodes.join()
            yield nodes
        finally:
            nodes.end()


def runner_of(job: JobFolder) -> psutil.Process:
    """Return Ray's worker that runs a job's program."""
    _, number = job.started.read_text().split()
    runner = psutil.Process(int(number)).parent()
    assert runner is not None
    assert runner.name().startswith("ray::"), runner
    return runner
