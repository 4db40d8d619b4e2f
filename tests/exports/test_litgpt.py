"""The export to LitGPT: a Llama on one device in its words, what of it is not proven there, and what is refused."""

from pathlib import Path

import pytest
import yaml

from autotune.exports import export, not_proven
from autotune.exports.fields import CannotExport
from autotune.models.resolve import resolve
from tests.configurations import make_best


def llama(**options):
    return make_best(**{"model": resolve("tiny-llama", base=Path()), **options})


def said(best):
    return yaml.safe_load(export(best, "litgpt")["litgpt.yaml"])


def refused(best):
    with pytest.raises(CannotExport) as refusal:
        export(best, "litgpt")
    return set(refusal.value.reasons)


def with_config(**changes):
    model = resolve("tiny-llama", base=Path())
    return llama(model=model.model_copy(update={"config": {**model.config, **changes}}))


def test_batches_are_samples_of_a_micro_step_and_of_all():
    train = said(llama(micro_batch=4, steps=5, seq_len=48))["train"]
    assert (train["micro_batch_size"], train["global_batch_size"], train["max_seq_length"]) == (4, 20, 48)


def test_nothing_is_left_to_its_defaults_that_takes_memory():
    """It evaluates, generates an example, saves, and loads by four workers where nothing is said."""
    found = said(llama())
    assert found["data"]["init_args"]["num_workers"] == 0
    assert found["train"]["save_interval"] is None
    assert not found["eval"]["final_validation"]
    assert found["eval"]["max_iters"] == 1
    assert (found["devices"], found["num_nodes"]) == (1, 1)


@pytest.mark.parametrize(
    ("precision", "name"), [("fp32", "32-true"), ("bf16", "bf16-mixed"), ("bf16-pure", "bf16-true")]
)
def test_precision_has_names_of_its_own(precision, name):
    assert said(llama(precision=precision))["precision"] == name


def test_an_optimizer_is_a_class_with_how_it_updates():
    adamw = said(llama(optimizer_kernel="foreach"))["optimizer"]
    assert adamw["class_path"] == "torch.optim.AdamW"
    assert (adamw["init_args"]["fused"], adamw["init_args"]["foreach"]) == (False, True)
    assert "fused" not in said(llama(optimizer="adafactor"))["optimizer"]["init_args"], "which torch has"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"checkpointing": "full"}, "checkpointing"),
        ({"attention": "eager"}, "attention"),
        ({"device": "cuda", "precision": "fp16"}, "precision"),
        ({"pin_memory": True}, "pin_memory"),
        ({"compile": "regional"}, "compile"),
    ],
)
def test_what_it_has_no_argument_for_is_refused(options, field):
    assert refused(llama(**options)) == {field}


def test_several_devices_are_refused_whatever_shards_there():
    assert refused(llama(device="cuda", gpus=2, sharding="fsdp2")) == {"gpus", "sharding"}


@pytest.mark.parametrize(
    "changes", [{"mlp_bias": True}, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}]
)
def test_a_llama_that_it_cannot_build_is_refused(changes):
    assert refused(with_config(**changes)) == {"model"}


def test_another_model_is_refused():
    assert refused(make_best()) == {"model"}


def test_it_is_never_proven_there_and_a_head_of_its_own_is_counted():
    assert len(not_proven(llama(), "litgpt")) == 3
    assert len(not_proven(llama(device="cuda"), "litgpt")) == 4, "TF32"
    assert "16,384 parameters more" in not_proven(with_config(tie_word_embeddings=True), "litgpt")[-1]
