"""What starts an export somewhere else: a batch job, a cloud's task, a cluster's pods. Each runs its launch.sh.

One pure function a launcher: `Best -> {file name: text}`, beside the files of the target. `launch.sh` by itself is
what torchrun is: on each machine `torch.distributed.run` with as many processes as it has devices. Of several machines
each is told its number (NODE_RANK) and the first one's address (MASTER_ADDR), by what these files know of the job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from autotune.devices.hardware import lookup
from autotune.errors import InputError, nearest
from autotune.exports.shared import yaml_text
from autotune.run.best import Best
from autotune.units import GIB, MIB

PORT = 29500
"""On which the first machine's ranks wait for the others': torch's own number."""

ACCELERATORS = {
    "a100-sxm-40gb": "A100", "a100-pcie-40gb": "A100", "a100-sxm-80gb": "A100-80GB", "a100-pcie-80gb": "A100-80GB",
    "h100-sxm-80gb": "H100", "h100-pcie-80gb": "H100", "gh200-96gb": "GH200", "h200-sxm-141gb": "H200",
    "b200-180gb": "B200", "l40s-48gb": "L40S", "l4-24gb": "L4", "rtx-6000-ada-48gb": "RTX6000-Ada",
    "rtx-a6000-48gb": "RTXA6000", "a10g-24gb": "A10G", "rtx-3090-24gb": "RTX3090", "rtx-4090-24gb": "RTX4090",
    "t4-16gb": "T4", "v100-sxm-16gb": "V100", "v100-pcie-16gb": "V100", "v100-sxm-32gb": "V100-32GB",
    "v100-pcie-32gb": "V100-32GB", "mi300x-192gb": "MI300X",
}  # fmt: skip
"""SkyPilot's names (`sky show-gpus --all`) of the GPUs of hardware.yaml, by id."""


def launcher_files(best: Best, launcher: str, image: str | None = None) -> dict[str, str]:
    """Return the files that a launcher needs beside those of a target; torchrun needs none.

    `image` is the container that has what trains installed. Raises InputError for an unknown launcher, and where one
    lacks what it cannot do without.
    """
    require_launcher(launcher)
    return LAUNCHERS[launcher](best, image)


def require_launcher(launcher: str) -> None:
    """Raise InputError where there is no launcher of this name."""
    if launcher not in LAUNCHERS:
        raise InputError(
            f"--launcher: there is no launcher {launcher!r}; {nearest(launcher, LAUNCHERS)}", about="launcher"
        )


def _torchrun(_best: Best, _image: str | None) -> dict[str, str]:
    return {}


def _sbatch(best: Best, _image: str | None) -> dict[str, str]:
    each = best.gpus // best.nodes
    if best.device.kind == "cuda":
        asked = [
            f"#SBATCH --gpus-per-node={each}",
            "#SBATCH --mem=0  # all of a node's: by GPUs it was not measured",
        ]
    else:
        asked = [f"#SBATCH --mem={math.ceil(each * best.memory.budget / MIB)}M"]
    lines = [
        "#!/bin/sh",
        "# Submit it from its folder: sbatch job.sbatch",
        f"#SBATCH --job-name={_name(best)}",
        f"#SBATCH --nodes={best.nodes}",
        "#SBATCH --ntasks-per-node=1  # launch.sh starts a process for each device",
        *asked,
        "#SBATCH --output=slurm-%j.out",
        "set -eu",
        'cd "$SLURM_SUBMIT_DIR"',
        'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        f'MASTER_PORT="$(({PORT} + SLURM_JOB_ID % 1000))"  # jobs may share a machine',
        "export MASTER_ADDR MASTER_PORT",
        'exec srun --kill-on-bad-exit=1 sh -c \'NODE_RANK="$SLURM_NODEID" exec sh launch.sh "$@"\' launch "$@"',
    ]
    return {"job.sbatch": "".join(f"{line}\n" for line in lines)}


def _skypilot(best: Best, image: str | None) -> dict[str, str]:
    each = best.gpus // best.nodes
    resources: dict[str, Any]
    if best.device.kind == "cuda":
        row = lookup(best.device.name.removeprefix("NVIDIA ").removeprefix("Tesla "))
        if row is None or row.id not in ACCELERATORS:
            raise InputError(
                f"SkyPilot asks for a GPU by a name of its own, and none is known of {best.device.name!r}; use "
                "--launcher torchrun on the machine itself",
                about="launcher",
            )
        resources = {"accelerators": {ACCELERATORS[row.id]: each}}
    else:
        resources = {"cpus": f"{each}+", "memory": f"{math.ceil(each * best.memory.budget / GIB)}+"}
    if image is not None:
        resources["image_id"] = f"docker:{image}"
    run = (
        'export NODE_RANK="$SKYPILOT_NODE_RANK"\n'
        'export MASTER_ADDR="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"\n'
        "sh launch.sh\n"
    )
    task = {
        "name": _name(best),
        "resources": resources,
        "num_nodes": best.nodes,
        "workdir": ".",
        "run": run,
    }
    about = "Start it from its folder: sky launch task.yaml\nWhat trains has to be installed: by image, or by `setup`."
    return {"task.yaml": yaml_text(task, about)}


def _kubernetes(best: Best, image: str | None) -> dict[str, str]:
    if image is None:
        raise InputError(
            "pods need a container image in which what trains is installed; name it with --image",
            about="image",
        )
    name, each = _name(best), best.gpus // best.nodes
    limits: dict[str, Any] = {"nvidia.com/gpu": each}
    if best.device.kind == "cpu":
        limits = {"memory": f"{math.ceil(each * best.memory.budget / MIB)}Mi"}
    script = 'cp -rL /export/. /work && cd /work && NODE_RANK="$JOB_COMPLETION_INDEX" exec sh launch.sh'
    container = {
        "name": "training",
        "image": image,
        "command": ["sh", "-c", script],
        "env": [
            {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"},
            {"name": "MASTER_PORT", "value": str(PORT)},
        ],
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": [
            {"name": "export", "mountPath": "/export", "readOnly": True},
            {"name": "work", "mountPath": "/work"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "export", "configMap": {"name": name}},
            {"name": "work", "emptyDir": {}},
            # NCCL and loader workers share memory through it; a pod's own 64 MiB are too few.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": best.nodes,
            "parallelism": best.nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}},
    }
    about = (
        "Start it from its folder:\n"
        f"  kubectl create configmap {name} --from-file=.\n"
        "  kubectl apply -f job.yaml"
    )
    return {"job.yaml": f"{yaml_text(service, about)}---\n{yaml_text(job, 'One pod for each machine.')}"}


def _name(best: Best) -> str:
    """Return the run's name as jobs are called anywhere: lower letters, digits and dashes, 50 at most."""
    plain = re.sub(r"[^a-z0-9]+", "-", best.run.lower()).strip("-")[:40].strip("-")
    return f"autotune-{plain}" if plain else "autotune"


LAUNCHERS: dict[str, Callable[[Best, str | None], dict[str, str]]] = {
    "torchrun": _torchrun,
    "sbatch": _sbatch,
    "skypilot": _skypilot,
    "kubernetes": _kubernetes,
}
"""Values of `autotune export --launcher`."""
