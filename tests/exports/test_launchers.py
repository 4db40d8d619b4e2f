"""What starts an export elsewhere: as many machines and devices as were measured, and nothing of a stranger's."""

import os
import subprocess

import pytest
import yaml

from autotune.devices.hardware import table
from autotune.errors import InputError
from autotune.exports.launchers import ACCELERATORS, LAUNCHERS, launcher_files
from tests.configurations import make_best

HOSTILE = 'x\n#SBATCH --wrap=`touch pwned`; "$(touch pwned)" \''


def of_two_nodes(**options):
    return make_best(**{"device": "cuda", "gpus": 16, "sharding": "fsdp2"} | options).model_copy(
        update={"nodes": 2}
    )


def on(best, name):
    return best.model_copy(update={"device": best.device.model_copy(update={"name": name})})


def test_torchrun_is_what_launch_sh_is():
    assert launcher_files(make_best(), "torchrun") == {}


def test_an_unknown_launcher_is_refused():
    with pytest.raises(InputError) as refusal:
        launcher_files(make_best(), "sbtach")
    assert refusal.value.about == ("launcher",)


def test_sbatch_asks_for_nodes_and_their_gpus():
    lines = launcher_files(of_two_nodes(), "sbatch")["job.sbatch"].splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8"} <= set(lines)
    assert any(line.startswith("#SBATCH --ntasks-per-node=1 ") for line in lines)


def test_sbatch_asks_for_the_memory_that_a_processors_ranks_may_take():
    text = launcher_files(make_best(gpus=2, sharding="ddp"), "sbatch")["job.sbatch"]
    assert "#SBATCH --mem=6144M\n" in text
    assert "gpus" not in text


def test_each_node_of_a_job_learns_its_number_and_the_first_ones_address(tmp_path):
    files = launcher_files(of_two_nodes(), "sbatch")
    (tmp_path / "job.sbatch").write_text(files["job.sbatch"])
    (tmp_path / "launch.sh").write_text('echo "$NODE_RANK $MASTER_ADDR $MASTER_PORT $*"\n')
    for name, text in {"scontrol": "printf 'first\\nsecond\\n'", "srun": 'shift; exec "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "70007",
        "SLURM_JOB_NODELIST": "two", "SLURM_NODEID": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["sh", str(tmp_path / "job.sbatch"), "--steps", "2"], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "1 first 29507 --steps 2\n"


def test_skypilot_asks_by_its_own_names():
    task = yaml.safe_load(
        launcher_files(on(of_two_nodes(), "NVIDIA H100 80GB HBM3"), "skypilot")["task.yaml"]
    )
    assert (task["resources"], task["num_nodes"]) == ({"accelerators": {"H100": 8}}, 2)
    assert "SKYPILOT_NODE_RANK" in task["run"]
    task = yaml.safe_load(launcher_files(make_best(gpus=2, sharding="ddp"), "skypilot")["task.yaml"])
    assert task["resources"] == {"cpus": "2+", "memory": "6+"}


def test_skypilots_names_are_of_gpus_that_autotune_knows():
    assert set(ACCELERATORS) <= {row.id for row in table().hardware}


def test_a_gpu_that_skypilot_has_no_name_for_is_refused():
    with pytest.raises(InputError) as refusal:
        launcher_files(make_best(device="cuda"), "skypilot")
    assert refusal.value.about == ("launcher",)


def test_kubernetes_starts_a_pod_for_each_node():
    service, job = yaml.safe_load_all(launcher_files(of_two_nodes(), "kubernetes", "me/train:1")["job.yaml"])
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert container["image"] == "me/train:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    name = job["metadata"]["name"]
    assert {"name": "MASTER_ADDR", "value": f"{name}-0.{service['metadata']['name']}"} in container["env"]
    assert pod["subdomain"] == service["metadata"]["name"], "by which a pod finds the first one"
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_kubernetes_wants_an_image():
    with pytest.raises(InputError) as refusal:
        launcher_files(make_best(), "kubernetes")
    assert refusal.value.about == ("image",)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_strangers_run_name_is_a_name_and_nothing_else(launcher):
    best = make_best(gpus=2, sharding="ddp").model_copy(update={"run": HOSTILE})
    for text in launcher_files(best, launcher, "image").values():
        assert "pwned" not in text.replace("touch-pwned", "")
        assert "--wrap" not in text
