"""The mapping files that are shipped: each can be read, reaches what a search needs, and writes what is read."""

import itertools
import json

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.script.axes import read_axes, shipped_axes
from autotune.script.command import parse_command, render, with_copies
from autotune.script.space import base_of, expressed, space_of
from tests.script.test_command import numbers

COMMANDS = {
    "hf_trainer": "python train.py", "trl": "python sft.py", "nanogpt": "python train.py",
    "accelerate": "python train.py --bs {micro_batch}", "axolotl": "python -m axolotl.cli.train c.yaml",
    "llamafactory": "python -m llamafactory.cli train c.yaml", "lightning_cli": "python main.py fit",
    "torchtitan": "python -m torchtitan.train", "litgpt": "python -m litgpt finetune_full m",
    "deepspeed": "python train.py --deepspeed c.json",
}  # fmt: skip


def parsed(name, folder):
    (folder / "c.yaml").write_text("base_model: m\n")
    (folder / "c.json").write_text("{}")
    return parse_command(COMMANDS[name], name, None, folder)


def test_there_is_a_command_for_each():
    assert set(COMMANDS) == set(shipped_axes())


@pytest.mark.parametrize("name", shipped_axes())
def test_each_is_complete_and_every_value_of_it_can_be_written(name, tmp_path):
    command = parsed(name, tmp_path)
    assert space_of(command).graph.start
    base = base_of(command, Candidate())
    for axis, values in expressed(command).items():
        for value in values:
            made = render(command, base.model_copy(update={axis: value}), numbers())
            argv, copies = with_copies(made, tmp_path, tmp_path / "scratch")
            assert all(isinstance(word, str) for word in argv)
            assert len(copies) == len(made.keys)


def test_what_they_write_is_what_their_programs_read(tmp_path):
    plain = Candidate(checkpointing="full", precision="bf16")
    argv = render(parsed("hf_trainer", tmp_path), plain, numbers()).argv
    pairs = list(itertools.pairwise(argv))
    for pair in (
        ("--per_device_train_batch_size", "4"), ("--gradient_accumulation_steps", "8"), ("--bf16", "True"),
        ("--gradient_checkpointing", "True"), ("--optim", "adamw_torch_fused"),
    ):  # fmt: skip
        assert pair in pairs
    nano = render(parsed("nanogpt", tmp_path), plain, numbers(total_accumulation=16)).argv
    assert "--gradient_accumulation_steps=16" in nano
    titan = render(parsed("torchtitan", tmp_path), plain, numbers()).argv
    assert titan[-1] == "activation-checkpoint:full", "a subcommand, which flags must precede"
    command = parsed("deepspeed", tmp_path)
    made = render(command, base_of(command, plain), numbers())
    _, copies = with_copies(made, tmp_path, tmp_path / "scratch")
    (text,) = copies.values()
    assert json.loads(text)["zero_optimization"]["stage"] == 2
    assert render(parsed("accelerate", tmp_path), plain, numbers()).env == {
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "8", "ACCELERATE_MIXED_PRECISION": "bf16",
    }  # fmt: skip


def test_a_wildcard_needs_one_file(tmp_path):
    with pytest.raises(InputError) as caught:
        parse_command("python train.py", "deepspeed", None, tmp_path)
    assert "axes" in caught.value.about


def test_names_that_there_are_not_are_told_with_the_nearest(tmp_path):
    with pytest.raises(InputError) as caught:
        read_axes("hf_trainr", tmp_path)
    assert caught.value.about == ("axes",)
    assert "hf_trainer" in str(caught.value)
