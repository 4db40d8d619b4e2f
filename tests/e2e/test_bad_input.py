"""Every mistake gets one clear message: what, where, what to do. Never a traceback."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import autotune

RUN = ("run", "--model", "tiny-gpt2", "--target-global-batch", "16K", "--device", "cpu:1GiB")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("run", "--model", "gtp2", "--target-global-batch", "4M", "--device", "cpu:1GiB"),
            "did you mean gpt2",
        ),
        (("run", "--target-global-batch", "4M"), "model: this key is required"),
        ((*RUN[:3], "--target-global-batch", "4X", "--device", "cpu:1GiB"), "write it like 4M"),
        ((*RUN, "--seq-len", "4096"), "at most 512 tokens"),
        ((*RUN, "--space", "defalt"), "did you mean default"),
        ((*RUN, "--optimizer", "adam"), "'adamw'"),
        ((*RUN, "--headroom", "2"), "headroom"),
        ((*RUN, "--time-budget", "soon"), "not a duration"),
        ((*RUN[:5], "--device", "cpu:64MiB"), "smaller than what torch"),
        ((*RUN[:5], "--device", "cpu:4000GiB"), "more than this machine's memory"),
        ((*RUN[:5], "--device", "tpu"), "write auto, cuda, cuda:1, cpu:3GiB, sim:"),
        ((*RUN[:5], "--device", "sim:h10-80gb"), "did you mean"),
        ((*RUN[:5], "--device", "cpu"), "needs a memory budget"),
        (("resume", "nothing"), "there is no run 'nothing'"),
        (("report", "."), "is not a run of autotune"),
        (("verify", "nothing.yaml"), "cannot be read"),
        (("export", "nothing"), "there is no run"),
        (("spaces", "draw", "nothing"), "there is no file"),
        (("run", "--modle", "gpt2"), "No such option"),
        ((*RUN, "--spec", "nothing.yaml"), "nothing.yaml cannot be read"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else None,
)
def test_a_mistake_is_named_and_nothing_is_run(tmp_path, arguments, said):
    done = autotune(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_all_mistakes_are_reported_at_once(tmp_path):
    done = autotune(
        "run",
        "--model",
        "gtp2",
        "--target-global-batch",
        "4X",
        "--device",
        "gpu",
        "--space",
        "mine",
        "--headroom",
        "2",
        cwd=tmp_path,
    )
    assert done.code == 2
    assert sum(line.startswith("error: ") for line in done.stderr.splitlines()) == 5


def test_a_spec_file_is_checked_key_by_key(tmp_path):
    (tmp_path / "mine.yaml").write_text("model: tiny-gpt2\ntarget-global-bach: 4M\nseq-len: many\n")
    done = autotune("run", "--spec", "mine.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "mine.yaml: target_global_bach: unknown key; did you mean target_global_batch?" in done.stderr
    assert "mine.yaml: seq_len:" in done.stderr
    (tmp_path / "mine.yaml").write_text("model: [")
    assert "not valid YAML" in autotune("run", "--spec", "mine.yaml", cwd=tmp_path).stderr


def test_no_gpu_is_said_with_the_next_command_to_type(tmp_path):
    run = ("run", "--model", "tiny-gpt2", "--target-global-batch", "16K", "--max-probes", "1")
    done = autotune(*run, "--device", "cuda", cwd=tmp_path)
    if done.code == 0:
        pytest.skip("this machine has a GPU")
    assert done.code == 2
    assert "--device cpu:" in done.stderr


def test_a_damaged_run_folder_is_refused(tmp_path):
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text("nonsense: true\n")
    done = autotune("resume", "mine", cwd=tmp_path)
    assert done.code == 2
    assert "spec.yaml" in done.stderr
    assert "Traceback" not in done.stderr
