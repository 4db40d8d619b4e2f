"""A user's command from the command line to its proven winner, with memory that was really refused on the way."""

import signal
import subprocess
import time

import pytest

from autotune.outcome import Ok
from autotune.units import MIB
from tests.e2e.conftest import AUTOTUNE, budget, cpu, wide
from tests.script import programs
from tests.script.tuned import arguments, digests, environment, looked_at, processes, tuned

WIDE = programs.NANO.replace("1024", "8192")
"""Some 90 MiB of activations a sample."""
EVALUATES = """
import pathlib, sys
assert pathlib.Path(sys.argv[1]).is_dir()
pathlib.Path("score.txt").write_text("as good as it gets")
"""

pytestmark = pytest.mark.timeout(1500)
"""Each starts a program some ten times."""


def test_a_loop_is_tuned_to_a_proven_winner_and_what_it_leaves_is_named(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(WIDE)
    (folder / "evaluate.py").write_text(EVALUATES)
    run = tuned(
        folder, "python train.py --bs {micro_batch} --accum {accumulation} --out {output}",
        "--evaluation-command", "python evaluate.py {output}", device=cpu(budget(76 * MIB)), samples=4,
    )  # fmt: skip
    assert run.record.written == ("score.txt",), "the second command ran in the proof, and its file is told"
    assert "training steps only" not in " ".join(run.best.notes)
    assert run.best.proof.why.count("the second command")


def test_a_tuner_that_is_killed_goes_on_where_it_was_and_its_winner_is_verified(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(WIDE)
    before = digests(folder)
    run = arguments(
        "python train.py --bs {micro_batch} --accum {accumulation} --out {output}",
        device=cpu(budget(76 * MIB)), samples=4,
    )  # fmt: skip
    with (tmp_path / "said").open("w") as said:
        tuner = subprocess.Popen(run, cwd=folder, env=environment(folder), stdout=said, stderr=said)
        while not [*folder.glob("runs/*/probes/0002/scratch/watch/state-*")]:
            assert tuner.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.05)
        assert processes(folder)
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
    while processes(folder):  # their supervisor sees that its tuner is gone, and ends them
        time.sleep(0.05)
    first = [
        line
        for line in next(folder.glob("runs/*/journal.jsonl")).read_text().splitlines()
        if "finished" in line
    ]
    assert len(first) == 1

    def told(*words):
        return subprocess.run(
            [*AUTOTUNE, *words],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=600,
        )

    resumed = told("resume", "last")
    assert resumed.returncode == 0, resumed.stderr
    found = looked_at(folder, before, 4, resumed.stderr)
    lines = found.paths.journal.read_text().splitlines()
    assert first[0] in lines, "what was finished is not run again"
    assert [trial.number for trial in found.record.history] == [*range(1, len(found.record.history) + 1)]
    best = str(found.paths.root / "best.yaml")
    refused = told("verify", best)
    assert refused.returncode == 2
    verified = told("verify", best, "--trust-remote-code", "--speed-tolerance", "0.9", "--proof-time", "2s")
    assert verified.returncode == 0, verified.stderr
    assert not processes(folder)
    assert (folder / "train.py").read_text() == WIDE


def test_a_model_that_is_named_beside_its_script_says_what_to_expect_of_it(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(programs.OF_A_CONFIGURATION)
    run = tuned(
        folder, f"python train.py {wide(folder)} --bs {{micro_batch}} --accum {{accumulation}}",
        "--model", "./tiny.json", "--seq-len", "256", "--max-probes", "4",
        device=cpu(budget(640 * MIB)), samples=8, foreseen=True,
    )  # fmt: skip
    assert run.best.model.traced_as.name == "./tiny.json"
    (first, *_) = run.record.history
    assert first.prediction is not None, "before any probe of the command taught anything"
    for trial in run.record.history:
        assert isinstance(trial.outcome, Ok)
        assert trial.prediction.low < trial.outcome.memory.peak() < trial.prediction.high
