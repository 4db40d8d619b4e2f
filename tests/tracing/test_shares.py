"""Candidates divided among the workers that trace them."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.tracing.shares import shares

PASSES = [Candidate(checkpointing=value) for value in ("none", "selective", "full")]
OPTIMIZERS = [Candidate(optimizer_kernel="foreach"), Candidate(offload="optimizer")]


def test_what_runs_on_one_model_is_traced_by_one_worker_as_long_as_that_is_even():
    compiled = [one.model_copy(update={"compile": "regional"}) for one in PASSES]
    others = [one.model_copy(update={"attention": "eager"}) for one in PASSES]
    first, second = shares([*compiled, *PASSES, *OPTIMIZERS, *others], 2)
    if compiled[0] in second:
        first, second = second, first
    assert set(first) >= set(compiled), "a block is compiled once"
    assert not set(second) & set(compiled)
    with_optimizers = first if PASSES[0] in first else second
    assert with_optimizers[:3] == [PASSES[0], *OPTIMIZERS], "whose optimizers serve others"
    halves = shares(PASSES, 2)
    assert sorted(map(len, halves)) == [1, 2], "rather than one worker"
    away = {"compile": "regional", "activation_offload": True}
    gathered = [Candidate(sharding=sharding, **away) for sharding in ("fsdp2", "zero2")]
    assert len(shares(gathered, 2)) == 1, "FSDP2 gathers the same parameters for both"


def test_everything_is_traced_once_and_nobody_is_idle():
    ladder = [
        Candidate(attention=attention, checkpointing=one.checkpointing, loss=loss, offload=offload)
        for attention in ("sdpa", "eager")
        for offload in ("none", "full")
        for loss in ("full", "chunked")
        for one in PASSES
    ]
    for workers in (1, 2, 3, 4, 8):
        divided = shares(ladder, workers)
        assert len(divided) == workers
        assert sorted(one.key() for share in divided for one in share) == sorted(one.key() for one in ladder)


def test_parts_change_places_where_that_is_more_even():
    """The largest first gives 3 + 2 + 2 and 3 + 2; 3 + 3 and 2 + 2 + 2 are nearer to each other."""
    models = [
        Candidate(precision="bf16"), Candidate(precision="fp32"), Candidate(precision="fp16"),
        Candidate(precision="bf16-pure"), Candidate(precision="fp32", tf32=True),
    ]  # fmt: skip
    ladder = [
        model.model_copy(update={"checkpointing": one.checkpointing})
        for number, model in enumerate(models)
        for one in PASSES[: 3 if number < 2 else 2]
    ]
    divided = shares(ladder, 2)
    assert sorted(sum(one in models[:2] for one in share) for share in divided) == [0, 2]


def test_gradients_that_leave_the_device_take_a_trace_of_their_own():
    leaving = [Candidate(offload="gradients", optimizer_kernel=kernel) for kernel in ("fused", "foreach")]
    others = [Candidate(attention="eager", checkpointing=one.checkpointing) for one in PASSES]
    chunked = [one.model_copy(update={"loss": "chunked"}) for one in others]
    first, second = shares([PASSES[0], *leaving, *others, *chunked], 2)
    assert {frozenset(first), frozenset(second)} == {
        frozenset([PASSES[0], *leaving]),
        frozenset([*others, *chunked]),
    }


def test_what_is_refused_for_lack_of_a_package_takes_no_workers_time(monkeypatch):
    lacking = [Candidate(kernels="liger", checkpointing=how) for how in ("none", "full")]
    monkeypatch.setattr("autotune.techniques.check.installed", lambda _: None)
    first, second = shares([*lacking, *PASSES], 2)
    assert {*first, *second} == {*lacking, *PASSES}
    traced = [[one for one in share if one.kernels == "torch"] for share in (first, second)]
    assert sorted(map(len, traced)) == [1, 2]


def test_those_that_run_through_most_blocks_are_traced_first_on_a_model():
    """FSDP2 prepares a block in its first pass: one that joins later would not be as those before it."""
    away = [one.model_copy(update={"activation_offload": True, "sharding": "fsdp2"}) for one in PASSES]
    stay = [one.model_copy(update={"activation_offload": False}) for one in away]
    (share,) = shares([*stay, *away], 1)
    assert {*share[:2]} == {*away[1:]}, "the device lets go of what left two blocks later"
    assert share[2] == away[0]
