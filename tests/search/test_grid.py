"""Strategies that walk no graph: everything in order, and at random."""

from dataclasses import replace

import pytest

from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.outcome import Lost, Ok
from autotune.search.enumeration import open_sizes, tried_sizes
from autotune.search.graph_walk import GraphWalk
from autotune.search.grid import Grid
from autotune.search.random_search import RandomSearch
from autotune.search.remaining_probes import count_remaining_probes
from autotune.search.selection import rank
from autotune.search.shipped import load_space
from autotune.search.space import Space
from autotune.search.strategy import Done, decide
from autotune.site import MachineFacts, Site
from autotune.specs import DeviceFacts
from autotune.testing.arithmetic import Arithmetic, search
from autotune.trial import Trial
from tests.fakes.executor import FACTS as MODEL
from tests.search.test_space import BASIC

V100 = DeviceFacts(kind="cuda", name="V100", torch_name="cuda:0", budget=1000, total=1000)
"""A GPU without bf16."""


def candidates(history):
    return [(trial.candidate.rung(), trial.candidate.micro_batch) for trial in history]


def test_the_grid_is_every_legal_rung_in_the_order_of_its_axes(context):
    rungs = list(context().rungs())
    assert len(rungs) == 3 * (2 * 3 - 1) - 1  # full offload asks for checkpointing, and fp16 for none of it
    assert rungs[:2] == [Candidate(precision="bf16"), Candidate(precision="bf16", offload="optimizer")]
    assert len(set(rungs)) == len(rungs)
    assert {
        rung.precision for rung in replace(context(), site=Site(device=V100, machine=MachineFacts())).rungs()
    } == {"fp16", "fp32"}


def test_every_number_of_blocks_is_a_rung_where_the_space_allows_any(context):
    text = BASIC.replace(
        "checkpointing: [none, full]", "checkpointing: [none, full]\n  checkpointed_blocks: [any]", 1
    )
    some = replace(context(space=Space.parse(text, "mine")), model=MODEL.model_copy(update={"blocks": 4}))
    found = [rung for rung in some.rungs() if rung.precision == "bf16" and rung.offload == "none"]
    counts = [(rung.checkpointing, rung.checkpointed_blocks) for rung in found]
    assert counts == [("none", "all"), *(("full", count) for count in ("all", 1, 2, 3))]
    too_many = Candidate(checkpointing="full", checkpointed_blocks=4)
    refused = some.refusal(too_many)
    assert (refused.axis, refused.cause) == ("checkpointed_blocks", "context")
    drawn = {RandomSearch().propose((), replace(some, seed=seed)).candidate.rung() for seed in range(60)}
    assert {rung.checkpointed_blocks for rung in drawn} == {"all", 1, 2, 3}
    assert ("none", 1) not in {(rung.checkpointing, rung.checkpointed_blocks) for rung in drawn}


def test_rungs_that_the_ranks_leave_nothing_to_do_are_not_in_the_grid(context):
    spread = context(gpus=4, target="640000", base=Candidate(sharding="ddp"), space=load_space("multi_gpu"))
    assert {rung.sharding for rung in spread.rungs()} == {"ddp", "zero1", "zero2", "fsdp2"}


def test_the_grid_tries_each_useful_micro_batch_until_one_does_not_fit(context):
    device = Arithmetic(budget=1000)
    history, done = search(device, context(), Grid(), most=500)
    plain = [trial for trial in history if trial.candidate.rung() == Candidate(precision="bf16")]
    assert [trial.candidate.micro_batch for trial in plain] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13]
    assert [trial.outcome.kind for trial in plain][-2:] == ["ok", "oom"]
    assert done.reason == "exhausted"
    assert "all 14 legal rungs" in done.why
    assert not done.path
    assert history[1].why == "micro-batch 1 was tried: 2 is next"
    assert history[0].node == "rung 1"


def test_what_was_lost_says_nothing_of_the_sizes_beside_it(context):
    outcome = Lost(cause="worker", phase="forward", message="SIGKILL")
    rung = Candidate(precision="bf16")
    lost = Trial(number=1, candidate=rung.at(2), node="n", why="", outcome=outcome, seconds=1)
    assert list(open_sizes(rung, tried_sizes((lost,)), context(target="800"))) == [1, 3, 4, 8]


@pytest.mark.parametrize("budget", [150, 440, 1000])
def test_nothing_beats_what_the_grid_finds(context, budget):
    device = Arithmetic(budget=budget)
    best = []
    for strategy in (Grid(), GraphWalk(), RandomSearch()):
        history, _ = search(device, context(budget=budget), strategy, most=500)
        best.append(min(score.seconds for score in rank(history, context(budget=budget))))
    assert best[0] == best[2] == min(best)


def test_a_random_search_follows_from_its_seed_and_tries_all_in_the_end(context):
    device = Arithmetic(budget=440)
    bounds = context(budget=440)
    first, again = (search(device, bounds, RandomSearch(), most=500)[0] for _ in range(2))
    other, done = search(device, replace(bounds, seed=1), RandomSearch(), most=500)
    assert candidates(first) == candidates(again) != candidates(other)
    fitting = {trial.candidate for trial in first if isinstance(trial.outcome, Ok)}
    assert fitting == {trial.candidate for trial in other if isinstance(trial.outcome, Ok)}
    assert isinstance(done, Done)


def test_a_space_of_thousands_of_millions_is_drawn_from_and_walked(context):
    wide = context(space=load_space("everything"), base=Candidate(), target="6400")
    for strategy in (Grid(), RandomSearch()):
        history = ()
        for number in range(1, 6):
            decision = strategy.propose(history, wide)
            trial = Trial(number=number, candidate=decision.candidate, node=decision.node, why="",
                          outcome=Arithmetic(budget=1000).outcome(decision.candidate), seconds=1)  # fmt: skip
            assert wide.refusal(decision.candidate) is None
            history += (trial,)
        assert len({trial.candidate for trial in history}) == 5


def test_the_limits_end_any_strategy_and_bound_what_is_still_ahead(context):
    bounds = context(limits={"max_probes": 3})
    for strategy in (Grid(), GraphWalk(), RandomSearch()):
        history, device = (), Arithmetic(budget=1000)
        assert count_remaining_probes(strategy, history, bounds) == 3
        while not isinstance(decision := decide(strategy, history, bounds), Done):
            outcome = device.outcome(decision.candidate)
            history += (
                Trial(
                    number=len(history) + 1, candidate=decision.candidate, node=decision.node, why="",
                    outcome=outcome, seconds=2,
                ),
            )  # fmt: skip
        assert (len(history), decision.reason) == (3, "max_probes")
        late = decide(strategy, history[:2], replace(bounds, limits=Limits(time_budget=4)))
        assert (late.reason, late.why) == ("time_budget", "stopped after 4.00 s of probes (--time-budget)")
