"""The export to TRL: its defaults, which are not transformers', are written out."""

import pytest
import yaml

from autotune.exports import NOT_PROVEN, export, not_proven, possible
from autotune.exports.fields import CannotExport
from tests.configurations import make_best


def sft(**options):
    return yaml.safe_load(export(make_best(**options), "trl")["sft.yaml"])


def test_what_trl_would_choose_otherwise_is_written_out():
    said = sft(precision="fp32", seq_len=48)
    assert said["gradient_checkpointing"] is said["bf16"] is said["packing"] is said["padding_free"] is False
    assert (said["max_length"], said["dtype"]) == (48, "float32")


def test_words_that_old_yaml_takes_for_booleans_stay_words():
    assert sft()["save_strategy"] == "no"


@pytest.mark.parametrize(
    ("precision", "dtype", "bf16"),
    [("bf16", "float32", True), ("bf16-pure", "bfloat16", False), ("fp32", "float32", False)],
)
def test_precision_is_type_of_weights_and_of_products(precision, dtype, bf16):
    said = sft(precision=precision)
    assert (said["dtype"], said["bf16"]) == (dtype, bf16)


@pytest.mark.parametrize("loss", ["full", "chunked"])
def test_its_own_loss_is_told_as_not_proven(loss):
    best = make_best(loss=loss)
    (sentence,) = not_proven(best, "trl")
    assert sentence.startswith("not proven there: ")
    assert sentence in export(best, "trl")[NOT_PROVEN]
    assert "trl" not in possible(best)


def test_a_model_for_another_task_is_refused():
    best = make_best()
    best = best.model_copy(update={"facts": best.facts.model_copy(update={"task": "masked-lm"})})
    with pytest.raises(CannotExport) as refusal:
        export(best, "trl")
    assert set(refusal.value.reasons) == {"model"}


def test_under_deepspeed_ranks_start_by_torchs_launcher():
    files = export(make_best(device="cuda", gpus=8, engine="deepspeed", sharding="zero3"), "trl")
    assert yaml.safe_load(files["sft.yaml"])["deepspeed"] == "deepspeed.json"
    assert "--nproc_per_node=8 -m trl.scripts.sft --config sft.yaml" in files["launch.sh"]
