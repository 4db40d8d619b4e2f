"""The exports to LLaMA-Factory and axolotl: what they would choose otherwise is written out, or told."""

import json
import subprocess
import sys

import pytest
import yaml

from autotune.exports import NOT_PROVEN, export, not_proven
from autotune.exports.fields import CannotExport
from autotune.run.write_best import write_files
from tests.configurations import make_best


def read(target, name, **options):
    return yaml.safe_load(export(make_best(**options), target)[name])


def refused(target, **options):
    with pytest.raises(CannotExport) as refusal:
        export(make_best(**options), target)
    return set(refusal.value.reasons)


def test_llamafactory_is_told_not_to_checkpoint_nor_to_pack():
    said = read("llamafactory", "train.yaml", seq_len=48)
    assert said["disable_gradient_checkpointing"] is True
    assert (said["packing"], said["cutoff_len"]) == (False, 48)
    assert not {"gradient_checkpointing", "use_liger_kernel"} & set(said), "which it has by names of its own"
    files = export(make_best(), "llamafactory")
    assert said["dataset"] in json.loads(files["dataset_info.json"])


@pytest.mark.parametrize(("attention", "name"), [("eager", "disabled"), ("flash_attention_2", "fa2")])
def test_llamafactory_has_names_of_its_own_for_attention(attention, name):
    assert read("llamafactory", "train.yaml", device="cuda", attention=attention)["flash_attn"] == name
    assert refused("llamafactory", device="cuda", attention="flex_attention") == {"attention"}


def test_llamafactory_starts_several_ranks_by_torchs_launcher():
    best = make_best(device="cuda", gpus=8, engine="deepspeed", sharding="zero2")
    assert (
        "torch.distributed.run --standalone --nproc_per_node=8 -m llamafactory.launcher train.yaml"
        in (export(best, "llamafactory")["launch.sh"])
    )


def test_another_transformers_is_told_as_not_proven():
    assert "5.23.0" in export(make_best(), "llamafactory")[NOT_PROVEN]


def test_axolotl_is_told_what_it_would_choose_otherwise():
    said = read("axolotl", "axolotl.yaml", precision="fp32", checkpointing="full", num_workers=2)
    assert (said["dataloader_num_workers"], said["dataloader_prefetch_factor"]) == (2, 2)
    assert said["dataloader_pin_memory"] is False
    assert said["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert (said["bf16"], said["tf32"]) == (False, False)


def test_axolotls_bf16_is_told_as_not_proven():
    assert not_proven(make_best(precision="fp32"), "axolotl") == ()
    (sentence,) = not_proven(make_best(precision="bf16"), "axolotl")
    assert sentence.startswith("not proven there: under bf16 ")
    assert refused("axolotl", precision="bf16-pure") == {"precision"}


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
def test_a_model_for_another_task_is_refused(target):
    best = make_best()
    best = best.model_copy(update={"facts": best.facts.model_copy(update={"task": "image-classification"})})
    with pytest.raises(CannotExport) as refusal:
        export(best, target)
    assert set(refusal.value.reasons) == {"model"}


def test_a_row_of_text_has_as_many_tokens_as_were_measured_with_one_for_its_end(tmp_path):
    write_files(export(make_best(seq_len=32), "axolotl"), tmp_path)
    subprocess.run([sys.executable, "make_inputs.py"], cwd=tmp_path, check=True)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    rows = [json.loads(line)["text"] for line in (tmp_path / "data" / "train.jsonl").read_text().splitlines()]
    assert {len(tokenizer.encode(row).ids) for row in rows} == {31}
