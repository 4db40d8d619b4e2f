"""A user's command from the command line to its proven winner, with memory that was really refused on the way."""

from autotune.units import MIB
from tests.e2e.conftest import budget, cpu
from tests.script import programs
from tests.script.tuned import tuned

WIDE = programs.NANO.replace("1024", "8192")
"""Some 90 MiB of activations a sample."""
EVALUATES = """
import pathlib, sys
assert pathlib.Path(sys.argv[1]).is_dir()
pathlib.Path("score.txt").write_text("as good as it gets")
"""


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
