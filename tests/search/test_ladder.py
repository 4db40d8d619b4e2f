"""What a rung is expected to take, told from its techniques one by one."""

import pytest

from autotune.candidate import Candidate
from autotune.search.ladder import LEAST_LEFT, Ladder, MemoryLine

CHECKPOINTED = {"checkpointing": "full"}
PRICES = {
    Candidate(): 10.0,
    Candidate(compile="regional"): 5.0,
    Candidate(**CHECKPOINTED): 13.0,
    Candidate(loss="chunked"): 11.0,
    Candidate(offload="optimizer"): 12.0,
    Candidate(activation_offload=True): 40.0,
    Candidate(**CHECKPOINTED, activation_offload=True): 13.5,
    Candidate(**CHECKPOINTED, offload="full"): 14.0,
}


def ladder(illegal=lambda rung: rung == Candidate(offload="full")):
    axes = {
        "checkpointing": ("none", "full"), "loss": ("full", "chunked"), "compile": ("none", "regional"),
        "activation_offload": (False, True), "offload": ("none", "optimizer", "full"),
        "optimizer_kernel": ("fused", "foreach"),
    }  # fmt: skip
    rungs = [Candidate()]
    for axis, values in axes.items():
        rungs = [rung.model_copy(update={axis: value}) for rung in rungs for value in values]
    return Ladder(Candidate(), tuple(axes), [rung for rung in rungs if not illegal(rung)])


@pytest.mark.parametrize(
    ("techniques", "seconds"),
    [
        ({"compile": "regional", **CHECKPOINTED}, 10 * 0.5 * 1.3),
        ({"compile": "regional", "offload": "optimizer"}, 5 + 2),
        ({"loss": "chunked", "offload": "optimizer"}, 10 + 1 + 2),
        ({"compile": "regional", "activation_offload": True}, 5 + 30),
        ({"compile": "regional", **CHECKPOINTED, "activation_offload": True}, 6.5 + 0.5),
        ({"compile": "regional", **CHECKPOINTED, "offload": "full"}, 6.5 + 1),
    ],
)
def test_what_changes_the_passes_multiplies_and_what_comes_beside_them_adds(techniques, seconds):
    assert ladder().guess(Candidate(**techniques), PRICES.get) == pytest.approx(seconds)


def test_what_is_moved_is_priced_beside_the_techniques_that_keep_less():
    rung = Candidate(**CHECKPOINTED, loss="chunked", activation_offload=True, compile="regional")
    parts = ladder().parts(rung)
    over = Candidate(**CHECKPOINTED, loss="chunked", activation_offload=True)
    assert over in parts
    assert Candidate(activation_offload=True) not in parts
    # 14 without moving, of its techniques one by one.
    prices = PRICES | {over: 14.25}
    assert ladder().guess(rung, prices.get) == pytest.approx(10 * 1.3 * 0.5 + 1 + 0.25)


def test_what_may_not_stand_alone_is_told_over_what_it_needs():
    assert ladder().parts(Candidate(**CHECKPOINTED, offload="full", compile="regional")) == (
        Candidate(**CHECKPOINTED), Candidate(compile="regional"), Candidate(**CHECKPOINTED, offload="full"),
    )  # fmt: skip
    taken = {rung: MemoryLine(seconds, 1.0) for rung, seconds in PRICES.items()}
    whole = Candidate(**CHECKPOINTED, offload="full", compile="regional")
    assert ladder().guess_taken(whole, taken.get) == MemoryLine(10 + 3 - 5 + 1, 1.0)
    assert ladder().guess_taken(Candidate(offload="full", compile="regional"), taken.get) is None


def test_what_needs_sharding_is_told_over_it():
    copies, sharded = Candidate(sharding="ddp"), Candidate(sharding="fsdp2")
    offloaded = sharded.model_copy(update={"offload": "full"})
    compiled = copies.model_copy(update={"compile": "regional"})
    rung = offloaded.model_copy(update={"compile": "regional"})
    known = Ladder(copies, ("compile", "offload", "sharding"), [copies, sharded, offloaded, compiled, rung])
    assert known.parts(rung) == (compiled, offloaded, sharded)
    prices = {copies: 10.0, sharded: 11.0, offloaded: 12.0, compiled: 5.0}
    assert known.guess(rung, prices.get) == pytest.approx(10 * 1.1 * 0.5 + 1)


def test_full_offload_that_needs_both_is_told_over_both():
    def illegal(rung):
        return rung.offload == "full" and not (rung.checkpointing == "full" and rung.activation_offload)

    rung = Candidate(**CHECKPOINTED, activation_offload=True, offload="full", compile="regional")
    assert Candidate(**CHECKPOINTED, activation_offload=True, offload="full") in ladder(illegal).parts(rung)


def test_what_spares_time_twice_may_spare_the_same_once():
    prices = PRICES | {Candidate(loss="chunked"): 4.0, Candidate(optimizer_kernel="foreach"): 4.0}
    both = Candidate(loss="chunked", optimizer_kernel="foreach")
    assert ladder().guess(both, prices.get) == pytest.approx(10 * LEAST_LEFT)


def test_a_rung_without_what_is_moved_keeps_what_that_was_priced_over():
    rung = Candidate(**CHECKPOINTED, activation_offload=True)
    assert ladder().without(rung, lambda part: part.activation_offload) == Candidate(**CHECKPOINTED)
