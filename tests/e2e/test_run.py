"""The command, from the outside, on real probes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

import autotune as autotune_api
from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.run.best import Best
from autotune.run.proof import SPEED, standing
from autotune.search.context import SearchContext
from autotune.search.selection import fastest
from autotune.units import MIB, format_bytes
from tests.e2e.conftest import AUTOTUNE, QUICK, SHORT, autotune, budget, cpu, probes_alive

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ROOMY = cpu(budget(640 * MIB))


def test_a_run_meets_real_ooms_and_ends_with_a_proven_winner(winner):
    _, ended = winner
    verdicts = {trial["outcome"]["kind"] for trial in ended.document["trials"]}
    assert {"ok", "oom"} <= verdicts
    best = ended.document["best"]
    assert best["proof"]["passed"]
    assert best["evidence"] == "measured"
    assert best["memory"]["device_peak"] <= best["memory"]["budget"]
    assert ended.document["decided"]["winner"] is not None


def test_whole_runs_hold_the_default_tolerance_of_speed(winner, foreseen):
    for _, ended in (winner, foreseen):
        best = ended.document["best"]
        assert ended.document["spec"]["limits"]["speed_tolerance"] == Limits().speed_tolerance == 0.1
        (check,) = [check for check in best["proof"]["checks"] if check["name"] == SPEED]
        assert check["passed"]
        assert check["tolerance"] == 0.1
        assert best["tokens_per_second"] == check["proven"]


def test_predictions_spare_probes_and_are_close(winner, foreseen):
    _, blind = winner
    _, ended = foreseen
    trials = ended.document["trials"]
    assert len(trials) < len(blind.document["trials"])
    measured = [trial for trial in trials if trial["outcome"]["kind"] == "ok"]
    assert measured
    for trial in measured:  # a 95% interval may miss, but not by far
        memory, expected = trial["outcome"]["memory"], trial["prediction"]
        peak = max(memory["device_peak"], memory["reserved"])
        assert 0.97 * expected["low"] <= peak <= 1.03 * expected["high"]
    assert not any(entry["reason"] for entry in ended.document["traced"])
    assert ended.document["best"]["proof"]["passed"]


def test_every_oom_is_a_refused_allocation_of_the_worker(winner):
    _, ended = winner
    for trial in ended.document["trials"]:
        if trial["outcome"]["kind"] == "oom":
            assert trial["outcome"]["requested"] > 0
            assert "can't allocate memory" in trial["outcome"]["message"]


def test_nothing_that_fits_is_known_to_be_faster_than_the_winner(winner):
    folder, ended = winner
    run = autotune_api.load_run(folder / ended.document["run"])
    context = SearchContext.of(run.spec, run.record.inspection.facts, run.record.inspection.budget)
    scores, drift = standing(run.record.history, run.record.proofs, context)
    best = run.best
    winner = next(score for score in scores if score.trial.number == ended.document["decided"]["winner"])
    assert winner.seconds == best.seconds_per_global_step
    assert best.drift == drift
    assert not any(score.is_faster(winner) for score in scores)
    assert {other.candidate for other in best.alternatives} == {
        score.trial.candidate for score in fastest(scores) if score is not winner
    }


def test_the_folder_of_the_run_holds_everything(winner):
    folder, ended = winner
    root = folder / ended.document["run"]
    assert {"spec.yaml", "journal.jsonl", "best.yaml", "probes"} <= {path.name for path in root.iterdir()}
    for trial in ended.document["trials"]:
        probe = root / "probes" / f"{trial['number']:04d}"
        assert {"request.json", "result.json", "stdout", "stderr"} <= {path.name for path in probe.iterdir()}
        assert not (probe / "scratch").exists()
    assert probes_alive(folder) == []


def test_stdout_holds_one_document_and_people_read_stderr(winner):
    _, ended = winner
    assert "Winner" in ended.stderr
    assert "tokens: micro-batch x devices x accumulation steps" in " ".join(ended.stderr.split())
    assert ended.document["best"]["accumulation"]["steps"] >= 1


def test_report_tells_the_same_story(winner):
    folder, ended = winner
    text = autotune("report", "last", cwd=folder)
    assert text.code == 0
    for part in ("Path through the graph", "Winner", "Rejected", "Next"):
        assert part in text.stdout
    assert autotune("report", "last", "--json", cwd=folder).document == ended.document


def test_verify_repeats_the_proof_from_the_file_alone(winner, tmp_path):
    folder, ended = winner
    copy = tmp_path / "elsewhere.yaml"
    copy.write_text((folder / ended.document["run"] / "best.yaml").read_text())
    done = autotune("verify", str(copy), "--proof-time", "2s", "--json", cwd=tmp_path)
    (verdict,) = done.document
    assert {check["name"]: check["passed"] for check in verdict["proof"]["checks"]}["peak memory"]
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere.yaml"]


def test_a_finished_run_resumes_to_the_same_winner_at_once(winner):
    folder, ended = winner
    again = autotune("resume", "last", "--json", cwd=folder)
    assert again.code == 0
    assert again.document["best"] == ended.document["best"]


def start(folder: Path) -> subprocess.Popen[str]:
    """Start a run and wait until its second probe is under way."""
    process = subprocess.Popen(
        [*AUTOTUNE, "run", "--model", "tiny-gpt2", "--target-global-batch", "1K", "--device", ROOMY, *SHORT],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(folder.glob("runs/*/probes/0002/request.json")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return process


def test_kill_9_leaves_no_process_and_resume_repeats_no_finished_probe(tmp_path):
    process = start(tmp_path)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while probes_alive(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert probes_alive(tmp_path) == []
    first = (next(tmp_path.glob("runs/*")) / "probes" / "0001" / "result.json").stat().st_mtime_ns
    done = autotune("resume", "last", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert done.document["best"]["proof"]["passed"]
    assert done.document["spec"]["limits"]["speed_tolerance"] == 0.1
    assert (next(tmp_path.glob("runs/*")) / "probes" / "0001" / "result.json").stat().st_mtime_ns == first


def interrupted(folder: Path, number: int, place: str, *arguments: str) -> tuple[int, str]:
    """Run a command until its worker is at a place, then send it a signal; return its exit code and what it said."""
    process = subprocess.Popen(
        [*AUTOTUNE, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    before = {path: path.stat().st_mtime_ns for path in folder.glob(place)}
    while {path: path.stat().st_mtime_ns for path in folder.glob(place)} == before:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    if place.endswith("0001/request.json") and not before:
        second = autotune("resume", "last", cwd=folder)
        assert second.code == 2
        assert "another autotune" in second.stderr
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def test_interruptions_in_the_same_place_change_nothing_and_say_how_to_resume(tmp_path):
    # One sequence a step leaves one candidate: with its probe lost there would be no winner.
    run = [
        "run",
        "--model",
        "tiny-gpt2",
        "--target-global-batch",
        "128",
        "--device",
        "cpu:1GiB",
        "--no-predict",
        "--launcher",
        "cold",  # a forked probe of so small a model ends before a second command has started
        *QUICK,
    ]
    probe, proof = "runs/*/probes/0001/request.json", "runs/*/probes/0001-proof/request.json"
    for signal_, code, place, arguments in (
        (signal.SIGINT, 130, probe, run),
        (signal.SIGINT, 130, probe, ["resume"]),
        (signal.SIGTERM, 143, probe, ["resume"]),
        (signal.SIGHUP, 129, proof, ["resume"]),
    ):
        ended, said = interrupted(tmp_path, signal_, place, *arguments)
        assert ended == code, said
        assert "autotune resume runs/" in said
        assert "Traceback" not in said
        assert probes_alive(tmp_path) == []
    done = autotune("resume", "last", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert [trial["outcome"]["kind"] for trial in done.document["trials"]] == ["ok"]
    assert done.document["decided"]["winner"] == 1
    assert done.document["best"]["proof"]["passed"]
    assert done.document["unknown"] == done.document["best"]["unknown"] == []


def test_a_full_disk_loses_nothing_and_says_how_to_go_on(tmp_path):
    # A limit on the size of files refuses writes to the journal as a full disk does. It is set while the tuner runs, to
    # the size that the journal has when a probe is finished.
    arguments = ["run", "--model", "tiny-gpt2", "--target-global-batch", "1K", "--device", ROOMY, *QUICK]
    running = subprocess.Popen(
        [*AUTOTUNE, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while running.poll() is None:
        written = b"".join(path.read_bytes() for path in tmp_path.glob("runs/*/journal.jsonl"))
        if b'"type":"finished"' in written:
            resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (len(written), resource.RLIM_INFINITY))
            break
        time.sleep(0.01)
    _, told = running.communicate(timeout=280)
    assert running.returncode == 1, told
    assert "cannot be written" in told
    assert "go on with: autotune resume runs/" in told
    assert "Traceback" not in told
    assert probes_alive(tmp_path) == []
    finished = autotune("report", "last", "--json", cwd=tmp_path).document["trials"]
    assert finished
    resumed = autotune("resume", "last", "--json", cwd=tmp_path)
    assert resumed.code == 0, resumed.stderr
    kept = resumed.document["trials"][: len(finished)]
    recorded = (
        "number",
        "candidate",
        "node",
        "why",
        "outcome",
        "seconds",
    )  # an interval learns from later measurements
    assert [[trial[name] for name in recorded] for trial in kept] == [
        [trial[name] for name in recorded] for trial in finished
    ]


def test_when_nothing_fits_it_says_how_much_is_missing(tmp_path):
    least = budget(64 * MIB)  # the logits of 1,024 tokens alone take 196 MiB
    done = autotune(
        "run", "--model", "gpt2", "--target-global-batch", "2K", "--device", cpu(least), *QUICK, "--seq-len", "1024",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 3
    assert f"nothing fits {format_bytes(least)}" in done.stderr
    assert "at least" in done.stderr
    record = autotune("report", "last", "--json", cwd=tmp_path).document
    assert Candidate.model_validate(record["trials"][-1]["candidate"]).offload == "full"


def test_a_bug_in_the_users_model_stops_the_run_with_its_traceback(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        raise ValueError('a bug of my own')\n"
        "def build():\n"
        "    return Mine(), lambda micro_batch, seq_len: {'x': torch.zeros(micro_batch, 4)}\n"
    )
    done = autotune(
        "run",
        "--model",
        "mine:build",
        "--target-global-batch",
        "1K",
        "--device",
        ROOMY,
        *QUICK,
        cwd=tmp_path,
    )
    assert done.code == 4
    assert "ValueError: a bug of my own" in done.stderr
    assert "mine.py" in done.stderr


def test_the_winner_of_the_run_is_what_best_yaml_holds(winner):
    folder, ended = winner
    best = Best.read(folder / ended.document["run"])
    assert best.model_dump(mode="json") == ended.document["best"]
