"""What starts exports elsewhere, as its own reader has it: SkyPilot's, and the published schemas of Kubernetes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.exports.launchers import launcher_files
from tests.configurations import make_best

PYTHON = Path(sys.executable).parent.parent / "launchers" / "bin" / "python"
READ = """
import json, sys
import kubernetes_validate, sky, yaml

path = sys.argv[1]
if path.endswith("task.yaml"):
    task = sky.Task.from_yaml(path)
    (asked,) = task.resources
    read = {
        "name": task.name, "num_nodes": task.num_nodes, "workdir": task.workdir, "run": task.run,
        "accelerators": asked.accelerators, "cpus": asked.cpus, "memory": asked.memory,
    }
else:
    read = [*yaml.safe_load_all(open(path))]
    for one in read:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
print("read: " + json.dumps(read))
"""
GPUS = {"device": "cuda", "gpus": 16, "sharding": "fsdp2"}
RANKS = {"gpus": 2, "sharding": "ddp"}


def best_of(options):
    best = make_best(**options)
    if options is not GPUS:
        return best
    named = best.device.model_copy(update={"name": "NVIDIA H100 80GB HBM3"})
    return best.model_copy(update={"nodes": 2, "device": named})


@pytest.fixture
def read(tmp_path):
    """Read a file by the library that it is for."""

    def by_its_library(name, text):
        path = tmp_path / name
        path.write_text(text)
        done = subprocess.run(
            [str(PYTHON), "-c", READ, str(path)], env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": ""},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("read: "))
        return json.loads(line.removeprefix("read: "))

    return by_its_library


def test_skypilot_reads_machines_gpus_and_command(read):
    task = read("task.yaml", launcher_files(best_of(GPUS), "skypilot")["task.yaml"])
    assert (task["num_nodes"], task["accelerators"]) == (2, {"H100": 8})
    assert task["run"].endswith("sh launch.sh\n")
    assert task["workdir"] == "."


def test_skypilot_reads_what_ranks_on_processors_take(read):
    task = read("task.yaml", launcher_files(best_of(RANKS), "skypilot")["task.yaml"])
    assert (task["num_nodes"], task["cpus"], task["memory"]) == (1, "2+", "6+")


@pytest.mark.parametrize("options", [GPUS, RANKS])
def test_kubernetes_knows_every_key(options, read):
    service, job = read(
        "job.yaml", launcher_files(best_of(options), "kubernetes", "registry/image:1")["job.yaml"]
    )
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert job["spec"]["completions"] == best_of(options).nodes


@pytest.mark.parametrize(("name", "launcher"), [("task.yaml", "skypilot"), ("job.yaml", "kubernetes")])
def test_a_misspelt_key_is_refused(name, launcher, read):
    text = launcher_files(best_of(RANKS), launcher, "registry/image:1")[name]
    misspelt = text.replace("num_nodes:", "nodes_num:").replace("completions:", "completion:")
    assert misspelt != text
    with pytest.raises(subprocess.CalledProcessError):
        read(name, misspelt)
