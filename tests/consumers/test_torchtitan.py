"""torchtitan builds its own configuration from what was exported, and trains a model of the measured sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.exports import NOT_PROVEN
from autotune.exports.torchtitan import STEPS
from autotune.models.resolve import resolve
from tests.configurations import make_best

TRITON = str(Path(__file__).with_name("without_triton"))
"""A stand-in for Triton, which CPU builds of torch lack and torchtitan imports always."""

READ = """\
import json, sys
import torch, torch._dynamo, torch._inductor.compile_fx
import torch._inductor.runtime.triton_compat, torch._inductor.runtime.triton_heuristics

sys.path.insert(0, {triton!r})  # now that torch has found that there is none
sys.path.insert(0, ".")
from torchtitan.config import ConfigManager

config = ConfigManager().parse_args(["--module", "titan_config", "--config", "tuned"])
with torch.device("meta"):
    model = config.model_spec.model.build()
print(json.dumps({
    "local": config.training.local_batch_size, "global": config.training.global_batch_size,
    "length": config.training.seq_len, "dtype": config.training.dtype,
    "products": config.training.mixed_precision_param,
    "checkpointing": type(config.activation_checkpoint).__qualname__,
    "loss": type(config.loss).__qualname__, "shards": config.parallelism.data_parallel_shard_degree,
    "parameters": sum(parameter.numel() for parameter in model.parameters()),
}))
"""


@pytest.mark.parametrize(
    ("options", "checkpointing", "loss"),
    [
        ({"precision": "bf16", "checkpointing": "full", "loss": "chunked"}, "FullAC.Config",
         "ChunkedLossWrapper.Config"),
        ({"precision": "fp32"}, "NoneType", "CrossEntropyLoss.Config"),
    ],
    ids=["bf16", "fp32"],
)  # fmt: skip
def test_torchtitan_reads_what_was_exported(options, checkpointing, loss, exported):
    best = make_best(
        model=resolve("tiny-llama", base=Path()), gpus=2, sharding="fsdp2", micro_batch=4, steps=5, **options
    )
    folder = exported(best, "torchtitan")
    done = subprocess.run(
        [sys.executable, "-c", READ.replace("{triton!r}", repr(TRITON))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    products = "bfloat16" if options["precision"] == "bf16" else "float32"
    assert (found["local"], found["global"], found["length"]) == (4, 40, 32)
    assert (found["dtype"], found["products"]) == ("float32", products)
    assert (found["checkpointing"], found["loss"], found["shards"]) == (checkpointing, loss, 2)
    assert found["parameters"] == 125_248, "as transformers' own has"


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_torchtitan_trains_as_a_run_measured(checkpointing, best_of, train, tmp_path, monkeypatch):
    """On a processor, with stand-ins for what it asks of a GPU (without_gpu)."""
    best = best_of(model="tiny-llama", precision="fp32", checkpointing=checkpointing)
    overlays = [os.environ["PYTHONPATH"], str(Path(__file__).with_name("without_gpu"))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(overlays))
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    trained = train(best, "torchtitan", *STEPS, inside="FeedForward")
    trained.check(best, groups_end=False)
    assert trained.dtypes() == {"torch.float32"}
    for step in trained.ranks[0]["steps"]:
        assert (step["optimizer"], step["dtypes"], step["numbers"]) == ("AdamW", ["torch.float32"], 125_248)
    assert "model code of its own" in (tmp_path / "torchtitan" / NOT_PROVEN).read_text()
