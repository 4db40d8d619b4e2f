"""A whole run on a GPU that is not there, from the outside."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import autotune


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """Return the folder and the output of a run on a simulated GPU."""
    folder = tmp_path_factory.mktemp("predicted")
    run = (
        "run",
        "--model",
        "tiny-gpt2",
        "--seq-len",
        "64",
        "--target-global-batch",
        "4K",
        "--space",
        "basic",
        "--json",
    )
    ended = autotune(*run, "--device", "sim:t4", cwd=folder)
    assert ended.code == 0, ended.stderr
    return folder, ended


def test_predictions_are_called_predictions_everywhere(predicted):
    folder, ended = predicted
    said = "predicted, not measured"
    assert said in ended.stderr
    assert ended.document["evidence"] == "predicted"
    best = ended.document["best"]
    assert best["evidence"] == "predicted"
    assert best["proof"] is None
    assert any(said in note for note in best["notes"])
    assert best["candidate"]["precision"] == "fp16", "a T4 has no bf16"
    assert best["device"]["name"] == "NVIDIA T4 (simulated)"
    assert said in autotune("report", "last", cwd=folder).stdout
    (file,) = folder.glob("runs/*/best.yaml")
    assert "evidence: predicted" in file.read_text()
    assert said in autotune("export", "last", "--to", "transformers", cwd=folder).stderr


def test_a_prediction_is_proven_on_a_real_device_alone(predicted):
    folder, _ = predicted
    (file,) = folder.glob("runs/*/best.yaml")
    simulated = autotune("verify", str(file), "--device", "sim:t4", cwd=folder)
    assert simulated.code == 2
    assert "proves nothing" in simulated.stderr
    here = autotune("verify", str(file), "--device", "cpu:2GiB", "--proof-time", "2s", cwd=folder)
    assert here.code == 0, here.stderr
    assert "were predicted" in here.stderr


def test_a_decided_run_on_a_simulated_gpu_resumes_to_the_same(predicted):
    folder, ended = predicted
    again = autotune("resume", "last", "--json", cwd=folder)
    assert again.code == 0, again.stderr
    assert again.document["best"] == ended.document["best"]
