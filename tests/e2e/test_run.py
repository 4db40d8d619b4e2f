"""The command, from the outside, on real probes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

import autotune as autotune_api
from autotune.options import Limits
from autotune.run.best import Best
from autotune.run.proof import SPEED, standing
from autotune.search.comparison import is_faster
from autotune.search.context import SearchContext
from autotune.search.selection import fastest
from tests.e2e.conftest import AUTOTUNE, ROOMY, SHORT, autotune, probes_alive

pytestmark = [pytest.mark.slow, pytest.mark.alone]


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
        # This proof may have measured for less than probe and finals: then their mean, by the seconds of each.
        low, high = sorted((check["recorded"], check["proven"]))
        assert low <= best["tokens_per_second"] <= high


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
    scores, drift = standing(run.record.history, run.record.proofs, context, run.record.rematches)
    best = run.best
    winner = next(score for score in scores if score.trial.number == ended.document["decided"]["winner"])
    assert winner.seconds == best.seconds_per_global_step
    assert best.drift == drift
    assert not any(is_faster(score, winner) for score in scores)
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
        [
            *AUTOTUNE, "run", "--model", "tiny-gpt2", "--target-global-batch", "1K", "--device", ROOMY, *SHORT,
            "--strategy", "graph", "--max-probes", "2",
        ],
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
    deadline = time.monotonic() + 60  # of a busy machine
    while probes_alive(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert probes_alive(tmp_path) == []
    first = (next(tmp_path.glob("runs/*")) / "probes" / "0001" / "result.json").stat().st_mtime_ns
    done = autotune("resume", "last", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert done.document["best"]["proof"]["passed"]
    assert done.document["spec"]["limits"]["speed_tolerance"] == 0.1
    assert (next(tmp_path.glob("runs/*")) / "probes" / "0001" / "result.json").stat().st_mtime_ns == first


def test_the_winner_of_the_run_is_what_best_yaml_holds(winner):
    folder, ended = winner
    best = Best.read(folder / ended.document["run"])
    assert best.model_dump(mode="json") == ended.document["best"]
