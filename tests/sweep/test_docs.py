"""What docs/sweeps.md shows is true: its file is planned and run, its schedules are read by what they are for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autotune.sweep.asked import AskedSweep
from autotune.sweep.file import SweepFile, SweepHardware
from autotune.sweep.night import new_night
from autotune.sweep.start import run_night
from tests.fakes.sweeps import ArithmeticExecution, anything

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
FIELD = r"(\*|\d+(-\d+)?(,\d+(-\d+)?)*)(/\d+)?"
"""Of a crontab: `*`, numbers, ranges, steps (man 5 crontab)."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_file_is_planned_and_run_and_each_key_is_explained(tmp_path):
    file = tmp_path / "sweep.yaml"
    text = blocks("yaml")[0]
    SweepFile.parse(YAML(typ="safe").load(text), "the page")
    file.write_text(re.sub(r"^webhook: .*$", "", text, flags=re.MULTILINE))  # which nobody here listens at
    found = AskedSweep.read(file, anything, lambda: 1 << 40)
    assert [cell.id for cell in found.cells] == [
        "tiny-gpt2-small-short", "tiny-gpt2-large-short", "tiny-gpt2-large-long", "tiny-llama-small-short",
        "tiny-llama-large-short", "tiny-llama-large-long", "gpt2-large-short",
    ]  # fmt: skip
    assert found.plan(tmp_path / "runs").costs.keys() == {"USD"}
    record = run_night(found, new_night("nightly", tmp_path / "runs"), execution=ArithmeticExecution()).record
    assert {entry.state for entry in record.ended.values()} == {"proven"}
    assert (tmp_path / "results").is_dir()
    explained = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert explained == set(SweepFile.model_fields)
    assert all(f"`{name}`" in PAGE for name in SweepHardware.model_fields)


def test_lines_of_cron_and_scrontab_have_five_fields_and_a_command():
    (cron,), (scron,) = blocks("cron"), blocks("scron")
    lines = [line for line in (*cron.splitlines(), *scron.splitlines()) if not line.startswith("#")]
    for line in lines:
        *fields, command = line.split(maxsplit=5)
        assert len(fields) == 5
        assert all(re.fullmatch(FIELD, field) for field in fields)
        assert "%" not in command  # which cron takes for a new line
        assert "autotune sweep run" in command
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0
    options = [line for line in scron.splitlines() if line.startswith("#")]
    assert all(re.fullmatch(r"#SCRON --[a-z-]+=\S+", line) for line in options)


@pytest.mark.parametrize("number", range(2))
def test_units_of_systemd_have_the_sections_that_they_need(number, tmp_path):
    text = blocks("ini")[number]
    sections = re.findall(r"^\[(\w+)\]$", text, re.MULTILINE)
    assert sections == [["Unit", "Service"], ["Unit", "Timer", "Install"]][number]
    for line in text.splitlines():
        assert not line or re.fullmatch(r"\[\w+\]|[A-Z]\w+=\S.*", line)
    if shutil.which("systemd-analyze"):  # where it is installed it judges more than this
        name = ["autotune-sweep.service", "autotune-sweep.timer"][number]
        for unit, content in zip(
            ("autotune-sweep.service", "autotune-sweep.timer"), blocks("ini"), strict=True
        ):
            (tmp_path / unit).write_text(
                re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", content, flags=re.M)
            )
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "autotune-sweep" not in done.stderr, done.stderr


def test_the_workflow_is_one_whose_steps_say_what_they_run():
    workflow = YAML(typ="safe").load(blocks("yaml")[1])
    assert workflow["on"]["schedule"][0]["cron"].count(" ") == 4
    steps = workflow["jobs"]["sweep"]["steps"]
    assert all({"run", "uses"} & {*step} for step in steps)
    runs = [step["run"] for step in steps if "run" in step]
    assert [re.search(r"autotune sweep (\w+)", line)[1] for line in runs] == ["run", "report"]
