"""The export to Lightning: the Trainer's arguments, and what a strategy is told."""

import json

import pytest

from autotune.exports import export, not_proven
from autotune.exports.fields import CannotExport
from tests.configurations import make_best


def trainer(**options):
    return json.loads(export(make_best(**options), "lightning")["trainer.json"])


@pytest.mark.parametrize(
    ("precision", "name"),
    [("fp32", "32-true"), ("bf16", "bf16-mixed"), ("fp16", "16-mixed"), ("bf16-pure", "32-true")],
)
def test_precision_has_lightnings_name(precision, name):
    assert trainer(device="cuda", precision=precision)["precision"] == name


def test_ranks_are_devices_of_nodes():
    best = make_best(device="cuda", gpus=16, sharding="fsdp2", steps=7).model_copy(update={"nodes": 2})
    said = json.loads(export(best, "lightning")["trainer.json"])
    assert (said["devices"], said["num_nodes"], said["accumulate_grad_batches"]) == (8, 2, 7)


@pytest.mark.parametrize("sharding", ["zero1", "hsdp"])
def test_shardings_without_a_strategy_are_refused(sharding):
    with pytest.raises(CannotExport) as refusal:
        export(make_best(device="cuda", gpus=2, sharding=sharding), "lightning")
    assert set(refusal.value.reasons) == {"sharding"}


def test_the_type_that_gradients_are_summed_in_is_fsdp2s():
    files = export(make_best(gpus=2, sharding="fsdp2", reduce_dtype="bf16"), "lightning")
    assert json.loads(files["training.json"])["reduce_dtype"] == "bf16"
    with pytest.raises(CannotExport) as refusal:
        export(make_best(gpus=2, sharding="ddp", reduce_dtype="bf16"), "lightning")
    assert set(refusal.value.reasons) == {"reduce_dtype"}


def test_it_runs_what_was_measured():
    assert not_proven(make_best(), "lightning") == ()
