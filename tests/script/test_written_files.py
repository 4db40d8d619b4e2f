"""Files that a command writes elsewhere than it was told: which are noticed, in plain processes without torch."""

import json
import os
import subprocess
import sys

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.executors.script import ScriptExecutor
from autotune.probe.protocol import ProbeRequest
from autotune.script.command import parse_command
from autotune.script.runner import listing
from autotune.script.watched import SITE, read_seen
from autotune.specs import ModelSpec
from autotune.units import GIB

WRITES = """\
import os, sys, sqlite3
here, scratch = sys.argv[1:]
for name in ("kept.txt", "removed.txt", "before.txt"):
    open(os.path.join(here, name), "w").close()
os.remove(os.path.join(here, "removed.txt"))
os.rename(os.path.join(here, "before.txt"), os.path.join(here, "after.txt"))
os.close(os.open(os.path.join(here, "by descriptor.txt"), os.O_CREAT | os.O_WRONLY))
sqlite3.connect(os.path.join(here, "store.db")).execute("create table one (two)")
open(os.path.join(scratch, "output.txt"), "w").close()
open(os.path.join(here, "kept.txt")).close()
open(sys.argv[0]).close()
open("/dev/null", "w").close()
try:
    open(os.path.join(here, "no folder", "none.txt"), "w")
except FileNotFoundError:
    pass
"""


def test_python_tells_which_files_it_writes_and_scratch_is_none_of_them(tmp_path):
    here, scratch, watch = (tmp_path / name for name in ("here", "scratch", "watch"))
    for folder in (here, scratch, watch):
        folder.mkdir()
    (tmp_path / "writes.py").write_text(WRITES)
    environment = {
        **os.environ, "PYTHONPATH": str(SITE), "AUTOTUNE_WATCH": str(watch),
        "AUTOTUNE_WATCH_ASKED": json.dumps({"steps": 0, "scratch": [str(scratch)]}),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, str(tmp_path / "writes.py"), str(here), str(scratch)], env=environment, check=True
    )
    expected = {"kept.txt", "after.txt", "by descriptor.txt", "store.db"}
    assert {os.path.relpath(path, here) for path in read_seen(watch).written} == expected


def test_a_listing_leaves_out_scratch_runs_and_what_links_lead_to(tmp_path):
    for name in ("a.txt", "below/b.txt", "scratch/c.txt", "runs/one/journal.jsonl", "runs/one/best.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "below" / "link").symlink_to("/", target_is_directory=True)
    found = listing(str(tmp_path), [str(tmp_path / "scratch")])
    assert {os.path.relpath(path, tmp_path) for path in found} == {"a.txt", "below/b.txt", "below/link"}


def test_a_probe_compiles_nothing_beside_its_sources_where_the_variable_for_it_is_empty(
    tmp_path, monkeypatch
):
    """As a Makefile leaves it that exports the variable without a value: to Python that is not set."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    here = tmp_path / "here"
    here.mkdir()
    (here / "beside.py").write_text("")
    (here / "train.py").write_text("import beside")
    command = parse_command(f"{sys.executable} train.py {{micro_batch}} {{accumulation}}", None, None, here)
    request = ProbeRequest(
        kind="train", model=ModelSpec(name="train.py", source="command", command=command),
        candidate=Candidate(micro_batch=1), seq_len=8, accumulation_steps=1, device="cpu", budget=GIB, seed=0,
        sample_seconds=0.1, sample_steps=3, folder="", tokens_per_sample=8,
    )  # fmt: skip
    result = ScriptExecutor([CpuDevice(GIB)]).run(request, tmp_path / "probe", timeout=60)
    assert not result.written
    assert sorted(path.name for path in here.iterdir()) == ["beside.py", "train.py"]
