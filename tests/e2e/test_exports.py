"""The exported files, loaded and run by the libraries they are for: what was asked for is what runs."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.executors.ranks import RanksExecutor
from autotune.exports import export
from autotune.outcome import Ok
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import launch as launch_probe
from autotune.probe.protocol import ProbeRequest
from tests.configurations import make_best

AT_ITS_END = """
import atexit, os, pathlib

def tell():
    names = [task.read_text().strip() for task in pathlib.Path("/proc/self/task").glob("*/comm")]
    path = pathlib.Path(__file__).with_name("ended." + os.environ["RANK"])
    path.write_text(" ".join(name for name in names if "gloo" in name))

if "RANK" in os.environ:
    atexit.register(tell)
"""
"""A sitecustomize: it says which threads of a process group a rank still has when its interpreter ends."""
OBSERVE = Path(__file__).parents[1] / "data" / "observe.py"
LAYERS = 2
TENSORS = 28
"""Parameters of tiny-gpt2, each tied one counted once."""
STEPS = 2
BUDGET = 3 << 30


def write(best, target, folder):
    for name, text in export(best, target).items():
        (folder / name).write_text(text)
    return folder


def launch(best, target, folder):
    """Start launch.sh as a user would, with an observer in place of train.py; return what each rank saw."""
    write(best, target, folder)
    script = folder / "launch.sh"
    script.write_text(script.read_text().replace("train.py", f"{OBSERVE} {folder / 'seen'}"))
    (folder / "sitecustomize.py").write_text(AT_ITS_END)
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(folder),
    }
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        ["sh", str(script), "--steps", str(STEPS)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended = [file.read_text() for file in folder.glob("ended.*")]
    # Such a thread may still let go of what is Python's: that ends a process whose interpreter is ending.
    assert ended == [""] * (best.gpus if best.gpus > 1 else 0)
    return [json.loads(file.read_text()) for file in sorted(folder.glob("seen.*.json"))], done.stdout


def check_training(seen, best):
    """Check, on one rank, micro-batch, accumulation, checkpointing and precision as they happened."""
    candidate = best.candidate
    times = 2 if candidate.checkpointing == "full" else 1  # checkpointing runs each block again in backward
    assert seen["blocks"] == [[candidate.micro_batch, best.seq_len]] * (
        STEPS * best.accumulation.steps * LAYERS * times
    )
    # Offload takes the parameters one by one, each with an optimizer of its own.
    assert seen["optimizer_steps"] == STEPS * (1 if candidate.offload == "none" else TENSORS)
    assert seen["precisions"] == (["torch.bfloat16"] if candidate.precision == "bf16" else ["torch.float32"])
    assert seen["parameters"] == ["torch.float32"]
    assert seen["optimizer"] == {"adamw": "AdamW", "sgd": "SGD"}[candidate.optimizer]
    assert seen["fused"] or candidate.optimizer == "sgd"
    assert (seen["states"] > 0) == (candidate.optimizer == "adamw")
    assert seen["variable"] == best.variables["MALLOC_TOP_PAD_"]


def configuration(**options):
    return make_best(variables={"MALLOC_TOP_PAD_": "it's $HERE"}, **options)


def losses(output):
    return [float(line.split()[1]) for line in output.splitlines() if line.startswith("loss ")]


@pytest.mark.slow
def test_accelerate_runs_two_ranks(tmp_path):
    best = configuration(gpus=2, sharding="ddp", checkpointing="full", precision="bf16")
    ranks, output = launch(best, "accelerate", tmp_path)
    assert len(ranks) == 2
    for seen in ranks:
        assert seen["views"], "gradients would be held twice"
        check_training(seen, best)
        assert (seen["processes"], seen["distributed"], seen["mixed_precision"]) == (2, "MULTI_CPU", "bf16")
    first, last = losses(output)
    assert last < first


@pytest.mark.slow
def test_accelerate_runs_one_process(tmp_path):
    best = configuration(precision="fp32", optimizer="sgd", micro_batch=3, steps=2)
    (seen,), output = launch(best, "accelerate", tmp_path)
    check_training(seen, best)
    assert (seen["processes"], seen["distributed"], seen["mixed_precision"]) == (1, "NO", "no")
    assert seen["device"] == "cpu"
    assert len(losses(output)) == STEPS


@pytest.mark.slow
def test_transformers_trainer_runs_what_was_chosen(tmp_path):
    best = configuration(checkpointing="full", precision="bf16")
    (seen,), _ = launch(best, "transformers", tmp_path)
    check_training(seen, best)
    assert (seen["processes"], seen["distributed"], seen["mixed_precision"]) == (1, "NO", "bf16")
    assert not (tmp_path / "checkpoints").exists() or not any((tmp_path / "checkpoints").glob("checkpoint-*"))


@pytest.mark.slow
def test_native_trains_with_the_parts_that_were_measured(tmp_path):
    best = configuration(checkpointing="full", offload="full", precision="bf16")
    (seen,), output = launch(best, "native", tmp_path)
    check_training(seen, best)
    first, last = losses(output)
    assert last < first


def test_a_script_that_was_not_launched_as_measured_stops(tmp_path):
    write(make_best(gpus=2, sharding="ddp"), "accelerate", tmp_path)
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "this runs 1 process(es) with mixed precision 'no', but 2 with 'bf16' were measured" in done.stderr


@pytest.mark.parametrize(("gpus", "sharding", "distributed"), [(1, "none", "NO"), (8, "ddp", "MULTI_GPU")])
@pytest.mark.parametrize(("precision", "mixed"), [("fp32", "no"), ("bf16", "bf16")])
def test_accelerate_loads_its_configuration(gpus, sharding, distributed, precision, mixed, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file

    best = make_best(device="cuda", gpus=gpus, sharding=sharding, precision=precision)
    config = load_config_from_file(str(write(best, "accelerate", tmp_path) / "accelerate_config.yaml"))
    assert (config.distributed_type.value, config.num_processes) == (distributed, gpus)
    assert (config.mixed_precision, config.use_cpu) == (mixed, False)


@pytest.mark.parametrize(
    "options",
    [
        {"checkpointing": "full", "precision": "fp32"},
        {"optimizer": "sgd", "precision": "bf16"},
        {"optimizer": "adamw-8bit"},
        {"optimizer": "adafactor"},
        {"optimizer": "momentum"},
    ],
)
def test_transformers_accepts_its_arguments(options, tmp_path):
    from transformers import TrainingArguments

    best = make_best(micro_batch=4, steps=5, **options)
    values = json.loads((write(best, "transformers", tmp_path) / "training_arguments.json").read_text())
    arguments = TrainingArguments(**{**values, "output_dir": str(tmp_path)})
    assert arguments.per_device_train_batch_size == 4
    assert arguments.gradient_accumulation_steps == 5
    assert arguments.bf16 == (best.candidate.precision == "bf16")
    assert arguments.gradient_checkpointing == (best.candidate.checkpointing == "full")
    names = {
        "adamw": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit", "adafactor": "adafactor",
        "momentum": "sgd", "sgd": "sgd",
    }  # fmt: skip
    assert arguments.optim.value == names[best.candidate.optimizer]
    assert str(arguments.device) == "cpu"


def test_native_trains_on_two_ranks_as_they_were_measured(tmp_path):
    best = configuration(gpus=2, sharding="fsdp2", precision="bf16")
    seen, output = launch(best, "native", tmp_path)
    assert len(seen) == 2
    assert len(losses(output)) == STEPS, "one rank speaks for all"
    for rank in seen:
        assert rank["blocks"] == [[best.candidate.micro_batch, best.seq_len]] * (
            STEPS * best.accumulation.steps * LAYERS
        )
        assert rank["variable"] == best.variables["MALLOC_TOP_PAD_"]


@pytest.mark.slow
def test_ranks_of_torchs_launcher_do_what_those_of_a_probe_did(tmp_path):
    """A probe's ranks are started by autotune, each under a supervisor; the export's by torch.distributed.run."""
    told = {}

    def launcher(*where, environment, **options):
        told[environment["RANK"]] = environment
        return launch_probe(*where, environment=environment, **options)

    ranks = RanksExecutor([CpuDevice(BUDGET, ranks=2)] * 2, launcher)
    best = make_best(
        gpus=2, sharding="fsdp2", precision="fp32", steps=1, variables=ranks.environment(Candidate())
    )
    request = ProbeRequest(
        kind="train", model=best.model, candidate=best.candidate, seq_len=best.seq_len, accumulation_steps=1,
        device="cpu", world_size=2, budget=BUDGET, seed=best.seed, sample_seconds=1, sample_steps=STEPS,
        folder="",
    )  # fmt: skip
    found = ranks.run(request, tmp_path / "probe", timeout=240)
    assert isinstance(found.answer, Ok), found
    place = ProbeFolder(tmp_path / "probe")
    each = [
        json.loads(place.of_rank(rank).result.read_text())["answer"]["outcome"]["losses"] for rank in range(2)
    ]
    (tmp_path / "export").mkdir()
    seen, output = launch(best, "native", tmp_path / "export")
    assert losses(output) == pytest.approx(
        [sum(both) / 2 for both in zip(*each, strict=True)][:STEPS], abs=1e-4
    )
    assert len(seen) == 2
    for rank, exported in enumerate(seen):
        assert len(exported["ranks"]) == 5, "torch's launcher says who each rank is, and among how many"
        assert exported["ranks"] == {name: told[str(rank)][name] for name in exported["ranks"]}
        assert exported["threads"] == int(told[str(rank)]["OMP_NUM_THREADS"])


@pytest.mark.slow
def test_native_starts_on_each_of_two_nodes(tmp_path):
    """As on two machines, each with a launch of its own, that find each other by an address and a port."""
    best = configuration(gpus=4, sharding="hsdp", precision="fp32").model_copy(update={"nodes": 2})
    write(best, "native", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    nodes = [
        subprocess.Popen(
            ["sh", str(tmp_path / "launch.sh"), "--steps", str(STEPS)], text=True,
            env={**os.environ, **address, "PYTHON": sys.executable, "NODE_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [node.communicate() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert [len(losses(output)) for output, _ in said] == [STEPS, 0], "one rank speaks for all"
