import pytest
import yaml

from autotune.errors import InputError
from autotune.outcome import Stress
from autotune.reporting.winner import winner_rows
from autotune.run.best import Best, Check, Proof
from tests.configurations import make_best

PROOF = Proof(
    passed=True,
    why="all checks held",
    checks=(Check(name="peak", recorded=300.0, proven=301.0, tolerance=0.05, passed=True),),
    losses=(5.5, 5.4),
    evaluation_loss=5.3,
    checkpoint_bytes=3 * 2**30,
    peak=5 * 2**29,
    stresses=(Stress(name="shuffled lengths", peak=3 * 2**29),),
    seconds=12.5,
)


@pytest.fixture(scope="module")
def best():
    return make_best(variables={"OMP_WAIT_POLICY": "passive"}).model_copy(update={"proof": PROOF})


@pytest.fixture(scope="module")
def text(best):
    return best.to_yaml()


def test_what_is_written_is_read_back(best, text):
    assert Best.from_yaml(text, "best.yaml") == best


def test_writing_twice_gives_the_same_text(best, text):
    assert Best.from_yaml(text, "best.yaml").to_yaml() == text


def test_bytes_carry_gib_and_keys_their_meaning(text):
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "budget: 3221225472 # 3.00 GiB" in lines
    assert "checkpoint_bytes: 3221225472 # 3.00 GiB" in lines
    assert "peak: 2684354560 # 2.50 GiB" in lines, "of the proof"
    assert "peak: 1610612736 # 1.50 GiB" in lines, "of one of its stresses"
    assert "# Share of the budget that had to stay free." in lines


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"attention_kernels": ("flash",)}, "sdpa, torch's flash kernel ran"),
        ({"attention_kernels": ("flash", "math")}, "sdpa, torch's flash and math kernels ran"),
        ({"attention_kernels": ("flash",), "evidence": "predicted"}, "sdpa, torch's flash kernel assumed"),
        ({"attention_kernels": ()}, "sdpa"),
    ],
)
def test_the_report_says_which_kernel_of_attention_ran(best, fields, said):
    shown = best.model_copy(update={"attention": "sdpa", **fields})
    assert dict(winner_rows(shown))["attention"] == said
    assert Best.from_yaml(shown.to_yaml(), "best.yaml").attention_kernels == shown.attention_kernels


def test_the_effective_batch_is_shown_to_the_reader(text):
    assert yaml.safe_load(text)["accumulation"]["effective"] == 2 * 32 * 3


def test_small_numbers_are_numbers_to_readers_of_older_yaml_too(text):
    assert yaml.safe_load(text)["model"]["config"]["layer_norm_epsilon"] == 1e-05


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "  micro_batch: 2",
            "  micro_batch: 3",
            "candidate.micro_batch (3) and accumulation.micro_batch (2)",
        ),
        ("gpus: 1", "gpus: 8", "gpus (8) and accumulation.world_size (1) differ"),
        ("effective: 192", "effective: 191", "accumulation.effective is 191, but its factors give 192"),
        ("headroom:", "hedroom:", "hedroom: unknown key; did you mean headroom"),
        ("device_peak:", "peak:", "memory.peak: unknown key; valid: allocated"),
        (
            "precision: bf16",
            "precision: fp7",
            "'fp7' is not one of 'fp32', 'bf16', 'fp16', 'bf16-pure' or 'fp8'",
        ),
        ("version: 1", "version: 2", "version 2, this autotune reads 1"),
        ("run: 2", "run: [2", "not valid YAML"),
        ("seq_len: 32", "seq_len: 32\nseq_len: 64", "duplicate key"),
        ("micro_step:", "microstep:", "timing.micro_step: this key is required and missing"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(text, old, new, problem):
    assert old in text
    with pytest.raises(InputError) as error:
        Best.from_yaml(text.replace(old, new, 1), "best.yaml")
    assert problem in str(error.value)
    assert all(line.startswith("best.yaml") for line in str(error.value).splitlines())


def test_all_problems_are_told_at_once(text):
    broken = text.replace("headroom: 0.05", "headroom: 2").replace("seq_len: 32", "seq_len: many")
    with pytest.raises(InputError) as error:
        Best.from_yaml(broken, "best.yaml")
    assert len(error.value.problems) == 2
