"""Slurm's daemons on this machine, without systemd: munged, slurmctld and a slurmd for each of two nodes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

KEY = Path("/etc/munge/munge.key")
SOCKET = Path("/run/munge/munge.socket.2")
PATIENCE = 60.0

CONF = """
ClusterName=autotune
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=6000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=6000
PartitionName=small Nodes=n1,n2 Default=YES State=UP PriorityTier=1
PartitionName=large Nodes=n1,n2 State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=n1,n2 State=UP PriorityTier=10 PreemptMode=OFF
"""


@contextmanager
def slurm(root: Path):
    """Start the daemons below a folder, and end them; SLURM_CONF leads this process and its children to them."""
    for program in ("munged", "slurmctld", "slurmd", "sbatch"):
        assert shutil.which(program), f"{program} is not installed: make cluster-deps"
    (root / "state").mkdir(parents=True)
    for node in ("n1", "n2"):
        (root / "spool" / node).mkdir(parents=True)
    conf = root / "slurm.conf"
    conf.write_text(CONF.format(root=root, host=socket.gethostname().partition(".")[0], ports=free_ports(3)))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(conf)
    munged = start_munged()
    try:
        subprocess.run(["slurmctld", "-c", "-f", conf], check=True, capture_output=True)
        for node in ("n1", "n2"):
            subprocess.run(["slurmd", "-f", conf, "-N", node], check=True, capture_output=True)
        until = time.monotonic() + PATIENCE
        while sinfo() != {"n1": "idle", "n2": "idle"}:
            assert time.monotonic() < until, (root / "slurmctld.log").read_text()[-3000:]
            time.sleep(0.2)
        yield conf
    finally:
        with suppress(subprocess.SubprocessError):
            subprocess.run(["scancel", "--me"], capture_output=True, timeout=30, check=False)
        for name in ("n1", "n2", "slurmctld"):
            end(root / f"{name}.pid")
        if munged is not None:
            end(munged)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


def sinfo() -> dict[str, str]:
    """Return the state of each node."""
    said = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%N %T"], capture_output=True, text=True, check=False
    )
    return dict(line.split() for line in said.stdout.splitlines())


def living() -> list[str]:
    """Return the numbers of jobs that wait or run."""
    return _said("squeue", "--me", "--noheader", "--format=%i").split()


def node_of(job: str) -> str:
    """Return where a job runs."""
    return _said("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()


def set_down(node: str) -> None:
    """Set a node down: what runs there is ended."""
    _said("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")


def resume(node: str) -> None:
    """Take a node that was set down again, if it has not come back by itself (ReturnToService)."""
    with suppress(subprocess.CalledProcessError):
        _said("scontrol", "update", f"NodeName={node}", "State=RESUME")


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def start_munged() -> Path | None:
    """Start munged where none runs; return the file of its number."""
    if any(process.name() == "munged" for process in psutil.process_iter()):
        return None
    if not KEY.exists():
        KEY.write_bytes(os.urandom(1024))
    KEY.chmod(0o400)
    SOCKET.parent.mkdir(parents=True, exist_ok=True)
    for path in (KEY, KEY.parent, SOCKET.parent):
        shutil.chown(path, "munge", "munge")
    subprocess.run(["munged", "--force"], check=True, capture_output=True, user="munge", group="munge")
    return SOCKET.parent / "munged.pid"


def end(pid_file: Path) -> None:
    """End a daemon and wait until it is gone."""
    with suppress(OSError, ValueError, psutil.Error):
        daemon = psutil.Process(int(pid_file.read_text()))
        daemon.terminate()
        with suppress(psutil.TimeoutExpired):
            daemon.wait(20)
        daemon.kill()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    taken = [socket.socket() for _ in range(count)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports
