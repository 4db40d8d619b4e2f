"""A user's command: its template and its mapping file, all mistakes of both, and what it is started with."""

import json
import sys

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.options import RunOptions
from autotune.run.spec import to_spec
from autotune.script.command import call, parse_command, render, title, with_copies
from autotune.script.space import space_of, within
from autotune.search.graph import DONE
from autotune.search.space import Space
from autotune.training_command import NUMBERS

AXES = """
axes:
  micro_batch: {key: "ds.json:train_micro_batch_size_per_gpu"}
  accumulation: {flag: --accum=}
  seed: {env: SEED}
  checkpointing: {flag: --gc, values: {none: null, full: true}}
  precision: {flag: --dtype, values: {fp32: float32, bf16: mixed}}
  offload: {key: "ds.json:zero_optimization.offload_optimizer.device", values: {none: none, optimizer: cpu}}
  optimizer_in_backward:
    values:
      "off": {}
      "on": {args: [--in-backward], env: {FUSE: 1}, keys: {"ds.json:fused": true}}
"""


def numbers(**own):
    given = {
        "micro_batch": 4, "accumulation": 8, "total_accumulation": 8, "global_batch": 32,
        "gpus": 1, "nodes": 1, "seq_len": 64, "seed": 3,
        "output": "/scratch/a folder",
    }  # fmt: skip
    assert given.keys() == NUMBERS.keys()
    return {**given, **own}


def parsed(command, base, axes=None, evaluation=None):
    return parse_command(command, axes, evaluation, base)


def test_placeholders_become_words_and_nothing_goes_through_a_shell(tmp_path):
    command = parsed(
        "python train.py --bs={micro_batch} --accum {accumulation} {checkpointing:--gc --twice} "
        "{precision:fp32=|bf16=--bf16} --out {output}/x '--note=two words; $HOME' {{literal}}",
        tmp_path,
    )
    plain = render(command, Candidate(precision="fp32"), numbers()).argv
    assert plain == (
        "python", "train.py", "--bs=4", "--accum", "8", "--out", "/scratch/a folder/x", "--note=two words; $HOME",
        "{literal}",
    )  # fmt: skip
    full = render(command, Candidate(checkpointing="full"), numbers()).argv
    assert full[4:8] == ("8", "--gc", "--twice", "--bf16")


def test_a_mapping_file_sets_flags_variables_and_keys_of_copies(tmp_path):
    (tmp_path / "axes.yaml").write_text(AXES)
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}'
    )
    command = parsed("python train.py {axes} --deepspeed=ds.json last", tmp_path, "axes.yaml")
    before = (tmp_path / "ds.json").read_bytes()
    one = Candidate(checkpointing="full", offload="optimizer", optimizer_in_backward=True)
    made = render(command, one, numbers())
    argv, copies = with_copies(made, tmp_path, tmp_path / "scratch")
    ((copy, text),) = copies.items()
    assert argv == (
        "python", "train.py", "--dtype", "mixed", "--gc", "--in-backward", "--accum=8", f"--deepspeed={copy}", "last",
    ) or sorted(argv[2:7]) == sorted(["--dtype", "mixed", "--gc", "--in-backward", "--accum=8"])  # fmt: skip
    assert argv[-2:] == (f"--deepspeed={copy}", "last")
    assert made.env == {"FUSE": "1", "SEED": "3"}
    assert json.loads(text) == {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "train_micro_batch_size_per_gpu": 4,
        "fused": True,
    }
    assert (tmp_path / "ds.json").read_bytes() == before
    emitted = call(command, one, numbers(output="{output}"))
    assert emitted.keys["ds.json"]["zero_optimization.offload_optimizer.device"] == "cpu"


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("c.toml", 'a = 1\n[x]\nb = "t"\n[x.y]\nz = [1, 2]\n', 'a = 1\n\n[x]\nb = "t"\n\n[x.y]\nz = [1, 9]\n'),
    ("c.yaml", "# kept\nx:\n  y:\n    z: [1, 2]\n", "# kept\nx:\n  y:\n    z: [1, 9]\n"),
])  # fmt: skip
def test_toml_and_yaml_are_edited_too(tmp_path, name, text, expected):
    from autotune.script.config_files import edited

    assert edited(text, name, {("x", "y", "z", "1"): 9}) == expected


def test_all_mistakes_are_told_at_once(tmp_path):
    (tmp_path / "axes.yaml").write_text(
        "axes:\n  precision: {flag: --d, values: {fp23: x}}\n  chekpointing: {values: [full]}\n"
        "  micro_batch: {flag: a, env: b}\n"
    )
    with pytest.raises(InputError) as caught:
        parsed("no-such-program {micro_bach} {precision} {offload:nothing=1|none=}", tmp_path, "axes.yaml")
    told = "\n".join(caught.value.problems)
    for part in (
        "no-such-program", "did you mean micro_batch", "{precision}: say what stands for which value", "'nothing'",
        "did you mean fp32", "did you mean checkpointing", "exactly one of flag, env and key",
        "nothing tells it the micro",        "how often to accumulate",
    ):  # fmt: skip
        assert part in told, part


def test_keys_need_their_file_in_the_command_and_near_ones_are_told(tmp_path):
    (tmp_path / "axes.yaml").write_text(
        'axes: {micro_batch: {key: "c.json:train.micro_bach"}, accumulation: {flag: -a}}'
    )
    with pytest.raises(InputError, match="no word of the command names that file"):
        parsed("python train.py", tmp_path, "axes.yaml")
    (tmp_path / "c.json").write_text('{"train": {"micro_batch": 1}}')
    with pytest.raises(InputError, match="did you mean micro_batch"):
        parsed("python train.py c.json", tmp_path, "axes.yaml")


def test_the_space_is_what_the_mapping_can_express(tmp_path):
    command = parsed(
        "python t.py {micro_batch} {accumulation} {checkpointing:--gc} {compile:--compile} {optimizer:sgd|adamw}",
        tmp_path,
    )
    space = space_of(command)
    assert space.axes == {
        "checkpointing": ("none", "full"),
        "compile": ("none", "regional"),
        "optimizer": ("adamw",),
    }
    rungs = [
        (node.set["compile"], node.set["checkpointing"]) for node in space.graph.nodes.values() if node.set
    ]
    assert rungs == [("none", "none"), ("regional", "none"), ("none", "full")]
    # A memory-saving rung is of use only where something larger did not fit.
    assert space.graph.nodes["grow1"].target("limit") == DONE
    assert space.graph.nodes["grow0"].target("limit") == "rung1"
    own = Space(name="own", description="", axes={"loss": ("full", "chunked")}, graph=space.graph.model_copy(
        update={"nodes": {"rung0": space.graph.nodes["rung0"].model_copy(update={"set": {}, "next": {}})}}
    ))  # fmt: skip
    with pytest.raises(InputError) as caught:
        within(own, command)
    assert caught.value.about == ("space",)


def test_the_scratch_folder_may_stand_in_the_command_beside_the_mapping(tmp_path):
    """A cache of data goes where the outputs go; numbers stand in one place."""
    (tmp_path / "own.yaml").write_text("""axes:
  micro_batch: {flag: --bs}
  accumulation: {flag: --accum}
  output: {flag: --out}
""")
    command = parsed("env CACHE={output}/cache python train.py", tmp_path, "own.yaml")
    argv = render(command, Candidate(), numbers()).argv
    assert argv[:3] == ("env", "CACHE=/scratch/a folder/cache", "python")
    assert argv[-2:] == ("--out", "/scratch/a folder")
    with pytest.raises(InputError) as refused:
        parsed("python train.py --size {micro_batch}", tmp_path, "own.yaml")
    assert [problem.about for problem in refused.value.problems] == ["command"]


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("torchrun train.py --bs {micro_batch} --accum {accumulation}", "train.py"),
        ("env A=1 B=x.py python -m pip --bs {micro_batch} --accum {accumulation}", "python"),
    ],
)
def test_a_command_is_called_by_its_script_or_program(command, called, tmp_path):
    assert title(parsed(command, tmp_path)) == called


def test_a_file_that_is_read_by_an_older_yaml_keeps_its_words():
    """PyYAML takes a bare `no`, `on` or `1:30` for something else than the words that were quoted."""
    import yaml

    from autotune.script.config_files import edited

    text = "# mine\nsave_strategy: \"no\"\nat: '1:30'\nrate: 1e-4\nsize: 1\n"
    made = edited(text, "c.yaml", {("size",): 2, ("precision",): "no", ("offload", "device"): "off"})
    assert made.startswith("# mine\n")
    assert "rate: 1e-4" in made
    assert yaml.safe_load(made) == {
        "save_strategy": "no", "at": "1:30", "rate": "1e-4", "size": 2, "precision": "no",
        "offload": {"device": "off"},
    }  # fmt: skip


def test_what_a_command_is_not_told_cannot_be_asked_for(tmp_path):
    (tmp_path / "train.py").write_text("")
    asked = {
        "command": f"{sys.executable} train.py {{micro_batch}} {{accumulation}}", "device": "cpu:1GiB",
        "target_global_batch": "8 samples",
    }  # fmt: skip
    wrong = {"optimizer": "adafactor", "seq_len": 99, "train": ("lm_head",), "block_class": "Block"}
    with pytest.raises(InputError) as caught:
        to_spec(RunOptions(**asked, **wrong), lambda device, _: device, tmp_path)
    assert set(caught.value.about) == set(wrong)
    told = asked | {"command": asked["command"] + " {seq_len}"}
    spec = to_spec(RunOptions(**told, seq_len=99), lambda device, _: device, tmp_path)
    assert spec.goal.seq_len == 99


@pytest.mark.parametrize("command", ["", "   ", "{folder} --bs {micro_batch} --accum {accumulation}"])
def test_what_cannot_be_started_is_no_command(tmp_path, command):
    with pytest.raises(InputError) as caught:
        parse_command(command.replace("{folder}", str(tmp_path)), None, None, tmp_path)
    assert caught.value.about == ("command",)
    assert ("is no program" in str(caught.value)) is bool(command.strip())
