"""Others' training programs as they are, tuned by `autotune run --command` to a proven winner, an OOM on the way."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.outcome import Ok, Oom
from tests.script.tuned import tuned

pytestmark = pytest.mark.timeout(1500)
"""Each starts a program some ten times, and programs import for seconds."""
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"


def with_program(folder: Path, name: str) -> None:
    shutil.copy(PROGRAMS / f"{name}.py", folder / "train.py")


def test_a_script_of_deepspeed(folder):
    with_program(folder, "deepspeed_script")
    shutil.copy(PROGRAMS / "deepspeed.json", folder / "ds.json")
    run = tuned(
        folder, "torchrun --standalone --nproc-per-node {gpus} train.py --deepspeed_config ds.json",
        "--axes", "deepspeed", "--max-probes", "5", device="cpu:900MiB", samples=64,
    )  # fmt: skip
    assert (
        run.best.command.keys["ds.json"]["train_micro_batch_size_per_gpu"] == run.best.candidate.micro_batch
    )


def test_two_ranks_of_deepspeeds_own_launcher(folder):
    """It starts a launcher, and that the ranks, which it ends as soon as one of them fails, as by an OOM.

    It needs no ssh where no host is named. Whoever runs two trainings on a machine names their ports.
    """
    with_program(folder, "deepspeed_script")
    shutil.copy(PROGRAMS / "deepspeed.json", folder / "ds.json")
    run = tuned(
        folder,
        f"deepspeed --num_gpus {{gpus}} --master_port {free_port()} train.py --deepspeed_config ds.json",
        "--axes", "deepspeed", "--gpus", "2", "--max-probes", "4", device="cpu:620MiB", samples=32,
    )  # fmt: skip
    assert run.best.gpus == 2
    assert "--num_gpus 2" in " ".join(run.best.command.argv)
    for trial in run.record.history:
        if isinstance(trial.outcome, Ok):
            assert len(trial.outcome.memory.by_rank) == 2


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_script_of_transformers_trainer(folder):
    with_program(folder, "hf_trainer_script")
    run = tuned(
        folder, "python train.py --use_cpu True --save_strategy no --report_to none --max_steps 1000",
        "--axes", "hf_trainer", "--max-probes", "4", device="cpu:1200MiB", samples=8,
    )  # fmt: skip
    assert "--per_device_train_batch_size" in run.best.command.argv
    assert not run.record.written


def test_a_script_of_lightning(folder):
    with_program(folder, "lightning_script")
    run = tuned(
        folder,
        "python train.py --batch-size {micro_batch} --accumulate {accumulation} --root {output} "
        "--precision {precision:bf16=bf16-mixed|fp32=32-true}",
        "--max-probes", "5", device="cpu:1200MiB", samples=16,
    )  # fmt: skip
    assert all("matplotlib" in name for name in run.record.written), "its list of fonts, made once in a home"


def test_two_ranks_of_lightnings_own_command_line(folder):
    """LightningCLI, and Lightning's own launcher: the first rank starts the second, with the same arguments."""
    with_program(folder, "lightning_cli_script")
    run = tuned(
        folder,
        "python train.py fit --trainer.accelerator cpu --trainer.strategy ddp --trainer.max_epochs 100 "
        "--trainer.enable_progress_bar false --trainer.logger false",
        "--axes", "lightning_cli", "--gpus", "2", "--max-probes", "5", device="cpu:1000MiB", samples=16,
    )  # fmt: skip
    told = " ".join(run.best.command.argv)
    assert "--trainer.devices=2" in told
    assert f"--data.batch_size={run.best.candidate.micro_batch}" in told
    for trial in run.record.history:
        if isinstance(trial.outcome, Ok):
            assert len(trial.outcome.memory.by_rank) == 2
    assert all("matplotlib" in name for name in run.record.written)


def with_inputs(folder: Path, *more: str) -> None:
    for name in ("inputs", *more):
        subprocess.run([sys.executable, str(PROGRAMS / f"{name}.py"), str(folder)], check=True)


def test_trl_sft(folder):
    """What it makes of the data set goes to the scratch folder too, where its cache is told to be there."""
    with_inputs(folder)
    run = tuned(
        folder,
        "env HF_DATASETS_CACHE={output}/cache trl sft --model_name_or_path model --dataset_name data --use_cpu True "
        "--save_strategy no --report_to none --max_steps 1000",
        "--axes", "trl", "--max-probes", "4", device="cpu:1200MiB", samples=8,
    )  # fmt: skip
    assert run.best.model.name == "trl"
    assert not run.record.written


def test_llamafactory_cli(folder, monkeypatch):
    """With the older libraries that it wants (llamafactory.txt), and with a stand-in for torchaudio."""
    with_inputs(folder)
    shutil.copy(PROGRAMS / "llamafactory.yaml", folder / "train.yaml")
    older = Path(sys.executable).parent.parent / "llamafactory"
    overlays = [str(older), os.environ["PYTHONPATH"], str(HERE / "without_torchaudio")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(overlays))
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    run = tuned(
        folder, "env HF_DATASETS_CACHE={output}/cache llamafactory-cli train train.yaml",
        "--axes", "llamafactory", "--max-probes", "4", device="cpu:1100MiB", samples=8,
    )  # fmt: skip
    assert run.best.command.keys["train.yaml"]["cutoff_len"] == run.best.seq_len
    assert all("matplotlib" in name for name in run.record.written)


def test_litgpt_finetune_full(folder):
    with_inputs(folder, "litgpt_inputs")
    run = tuned(
        folder,
        "litgpt finetune_full checkpoint --data JSON --data.json_path rows.json --data.val_split_fraction 0.1 "
        "--train.epochs 1000",
        "--axes", "litgpt", "--max-probes", "4", device="cpu:950MiB", samples=8,
    )  # fmt: skip
    told = " ".join(run.best.command.argv)
    assert f"--train.micro_batch_size {run.best.candidate.micro_batch} " in told
    assert "--train.global_batch_size 8" in told
    assert all("matplotlib" in name for name in run.record.written)


def test_torchtitan_train(folder, monkeypatch):
    """Its own Llama for tests, with stand-ins for what it asks of a GPU (without_gpu), and nothing compiled."""
    with_inputs(folder)
    (folder / "rows").mkdir()
    shutil.move(folder / "text" / "text.jsonl", folder / "rows")
    overlays = [os.environ["PYTHONPATH"], str(HERE / "without_gpu")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(overlays))
    run = tuned(
        folder,
        "env HF_DATASETS_CACHE={output}/cache TORCHDYNAMO_DISABLE=1 torchrun --standalone --nproc-per-node {gpus} "
        "-m torchtitan.train --module llama3 --config llama3_debugmodel --hf-assets-path model "
        "--dataloader.dataset-path rows --training.steps 1000 --training.mixed-precision-param float32",
        "--axes", "torchtitan", "--max-probes", "6", device="cpu:980MiB", samples=16,
    )  # fmt: skip
    told = " ".join(run.best.command.argv)
    assert f"--training.local-batch-size {run.best.candidate.micro_batch} " in told
    assert "--training.global-batch-size 16 " in told
    peaks = {
        (trial.candidate.checkpointing, trial.candidate.micro_batch): trial.outcome.memory.peak()
        for trial in run.record.history
        if isinstance(trial.outcome, Ok)
    }
    assert peaks["alternate", 16] < peaks["none", 8], (
        "of 16 samples, which were refused without checkpointing"
    )
    refused = {
        trial.candidate.checkpointing for trial in run.record.history if isinstance(trial.outcome, Oom)
    }
    assert refused == {"none"}
    assert not run.record.written
