"""What the benchmark against an older commit makes of a Makefile, of other candidates, and of what it measured."""

import pytest

from autotune.candidate import Candidate
from benchmarks.older_commit import CASES, made, missed_by
from benchmarks.older_run import expressed, in_fp32
from benchmarks.racing_saving import missed_by as missed_by_racing


def test_make_run_is_read_from_the_makefile():
    (case,) = (case for case in CASES if case.name == "make-run")
    definition = case.definition()
    assert (definition.preset, definition.seq_len, definition.device) == ("gpt2", 128, "cpu:3GiB")
    text = "run: ready  ## a job\n\t$(BIN)/autotune run --model m \\\n\t\t--seq-len 8\n\ntest:\n\tother run\n"
    assert made(text).arguments == ("--model", "m", "--seq-len", "8")


def test_a_candidate_of_other_code_is_one_of_today_or_none():
    assert expressed({"micro_batch": 3, "offload": "optimizer"}) == Candidate(
        micro_batch=3, offload="optimizer"
    )
    assert expressed({"checkpointing": "every-2"}) is None
    assert expressed({"resting": "disk"}) is None


def test_an_older_commit_is_given_its_own_space_in_fp32(tmp_path):
    spaces = tmp_path / "tree" / "search_spaces"
    spaces.mkdir(parents=True)
    text = "axes:\n  precision: [bf16, fp32]\nset: {precision: bf16, offload: none}\n"
    (spaces / "default.yaml").write_text(text)
    case = CASES[0]
    given = in_fp32(tmp_path / "tree", case, tmp_path)
    assert given.arguments[:-2] == case.arguments
    assert given.arguments[-2] == "--space"
    found = (tmp_path / "fp32.yaml").read_text()
    assert found == text.replace("{precision: bf16", "{precision: fp32"), "its axes are left alone"
    assert in_fp32(tmp_path / "tree", given, tmp_path) == given


def row(wall=0.2, high=1.0, known=5.0, seconds=10.0):
    return {
        "case": "a", "commit": "c", "wall_share": wall, "interval": (0.9, high), "winner_share": 0.95, "how": "",
        "ours": {"seconds": 2.0}, "older": {"seconds": 10.0},
        "anytime": [{"peer": "guided"}, {"peer": "power", "seconds": seconds, "known_after": known}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "missed"),
    [(row(), 0), (row(wall=0.3), 1), (row(high=0.96), 1), (row(known=11.0), 1), (row(known=None), 1)],
)
def test_a_missed_target_is_told(found, missed):
    assert len(missed_by([found])) == missed


@pytest.mark.parametrize(("raced", "share", "missed"), [(9.0, 1.0, 0), (11.0, 1.0, 1), (9.0, 0.97, 1)])
def test_racing_that_takes_longer_or_finds_another_winner_is_told(raced, share, missed):
    found = {
        "case": "a", "strategy": "random", "raced": {"seconds": raced, "winner": "x"},
        "whole": {"seconds": 10.0, "winner": "y"}, "winner_share": share, "winner_share_at_most": share,
    }  # fmt: skip
    assert len(missed_by_racing([found])) == missed
