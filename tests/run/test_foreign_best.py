"""A best.yaml of a stranger's: what it says ends in a shell script, in JSON and in YAML, and stays data there."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import product

import pytest
import yaml

from autotune.candidate import Candidate, choices
from autotune.devices.cpu import CpuDevice
from autotune.devices.hardware import find_hardware
from autotune.devices.simulated import SimulatedDevice
from autotune.errors import InputError
from autotune.executors.ranks import RanksExecutor
from autotune.exports import EXPORTERS, export
from autotune.run.best import Best
from autotune.run.write_best import write_files
from autotune.units import GIB
from autotune.variables import VARIABLES
from tests.configurations import make_best
from tests.exports.test_exports import BASES

HOSTILE = 'x\'; touch pwned; "$(touch pwned)" `touch pwned` \\ && touch pwned #'
"""What a shell would run if it were not quoted."""


def with_variables(variables):
    """Return the text of a best.yaml that asks for variables."""
    data = yaml.safe_load(make_best().to_yaml())
    return json.dumps({**data, "variables": variables})


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "PATH",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "A=1; touch pwned;B",
        "$(touch pwned)",
        "",
        "a b",
        "IFS\n",
    ],
)
def test_a_file_sets_no_variable_that_autotune_does_not_set(name):
    with pytest.raises(InputError) as caught:
        Best.from_yaml(with_variables({name: "1"}), "best.yaml")
    assert caught.value.about == (f"variables.{name}",)


@pytest.mark.parametrize("value", ["1\ntouch pwned", "\x1b[2J", "9" * 5000])
def test_a_value_is_one_line_of_bounded_length(value):
    with pytest.raises(InputError) as caught:
        Best.from_yaml(with_variables({"OMP_NUM_THREADS": value}), "best.yaml")
    assert caught.value.about == ("variables.OMP_NUM_THREADS",)


@pytest.mark.parametrize("target", EXPORTERS)
def test_an_exported_script_runs_nothing_that_a_file_says(target, tmp_path):
    text = with_variables(dict.fromkeys(VARIABLES, HOSTILE))
    data = json.loads(text)
    data |= {
        "run": HOSTILE,
        "notes": [HOSTILE, "--- !!python/object:os.system"],
        "environment": {HOSTILE: HOSTILE},
    }
    data["model"] |= {"name": HOSTILE, "config": {**data["model"]["config"], "x'\"\n": f"{HOSTILE}\n- a: b"}}
    data["candidate"] |= BASES.get(target, {})
    if target in ("torchtitan", "litgpt"):
        data["model"]["config"]["model_type"] = "llama"
    best = Best.from_yaml(json.dumps(data), "best.yaml")
    write_files(export(best, target), tmp_path)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nenv\n")
    python.chmod(0o755)
    done = subprocess.run(
        ["sh", "launch.sh", HOSTILE], cwd=tmp_path, env={"PATH": os.environ["PATH"], "PYTHON": str(python)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"MALLOC_TOP_PAD_={HOSTILE}" in done.stdout.splitlines()
    assert not list(tmp_path.glob("**/pwned"))
    if target == "native":
        assert Best.read(tmp_path / "best.yaml") == best
    else:
        assert json.loads((tmp_path / "config.json").read_text()) == best.model.config


def test_every_variable_that_probes_run_under_may_stand_in_a_file():
    cpu, gpu = CpuDevice(GIB, ranks=2), SimulatedDevice(find_hardware("h100"))
    executors = (cpu, gpu, RanksExecutor([cpu, cpu]))
    axes = ("engine", "expandable_segments", "max_split_size", "sharding")
    found = set()
    for values in product(*map(choices, axes)):
        candidate = Candidate(**dict(zip(axes, values, strict=True)))
        found |= {name for one in executors for name in one.environment(candidate)}
    assert found <= VARIABLES
    assert {"MALLOC_MMAP_THRESHOLD_", "DS_ACCELERATOR", "GLOO_SOCKET_IFNAME", "PYTORCH_ALLOC_CONF"} <= found
