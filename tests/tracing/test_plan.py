"""Which candidates are traced, and of whose traces the others are composed."""

from autotune.candidate import Candidate
from autotune.tracing.plan import Halves, Pieces, TracePlan, plan
from tests.tracing.ladder import LADDER, PASSES


def test_an_optimizer_is_traced_over_the_passes_of_one_candidate():
    donors = {Pieces(PASSES[0], PASSES[0], LADDER[1]), Pieces(PASSES[0], PASSES[0], LADDER[2])}
    found = plan(LADDER).pieces
    assert set(found) == {*LADDER[4:6], *LADDER[7:]}
    assert {pieces._replace(passes=PASSES[0]) for pieces in found.values()} == donors
    assert found[LADDER[8]] == Pieces(PASSES[2], PASSES[0], LADDER[2])
    lora = [one.model_copy(update={"adapters": "lora"}) for one in LADDER[:2]]
    assert not set(plan([*LADDER, *lora]).pieces) & set(lora), "other parameters"
    assert plan([LADDER[4], LADDER[7]]) == TracePlan({}, {}, {}, ()), "passes that only two have with it"


def test_gradients_that_leave_are_composed_of_those_that_stay_and_kernels_under_full_offload():
    leaving = [one.model_copy(update={"offload": "gradients"}) for one in PASSES]
    on_host = [Candidate(checkpointing="full", offload="full", loss=loss) for loss in ("full", "chunked")]
    kernels = [one.model_copy(update={"optimizer_kernel": "foreach"}) for one in on_host]
    found = plan([*PASSES, *leaving, *on_host, *kernels]).pieces
    assert found == {
        leaving[1]: Pieces(PASSES[1], PASSES[0], leaving[0]),
        leaving[2]: Pieces(PASSES[2], PASSES[0], leaving[0]),
        kernels[1]: Pieces(on_host[1], on_host[0], kernels[0]),
    }


def test_losses_and_blocks_are_traced_once_each_and_every_optimizer_is():
    chunked = [one.model_copy(update={"loss": "chunked"}) for one in PASSES]
    found = plan([*PASSES, *chunked])
    assert found.halves == {
        one: Halves(
            PASSES[0],
            chunked[0],
            chunked[0].model_copy(update={"checkpointing": one.checkpointing, "loss": "full"}),
        )
        for one in chunked[1:]
    }
    eager = [one.model_copy(update={"attention": "eager"}) for one in (*PASSES, *chunked)]
    assert len(plan([*PASSES, *chunked, *eager]).halves) == 4
    assert not set(plan([*PASSES, *chunked[1:]]).halves), "nothing has this loss with the plainest blocks"
    kernels = [one.model_copy(update={"optimizer_kernel": "foreach"}) for one in (chunked[2], PASSES[0])]
    assert chunked[2] in plan([*PASSES, *chunked, *kernels]).halves
    both = plan([*PASSES, *chunked, kernels[0]])
    assert set(both.halves) == {chunked[1]}, "the passes over which an optimizer is traced are traced"
    assert not both.pieces


def test_passes_under_ddp_are_those_of_one_device():
    replicated = [one.model_copy(update={"sharding": "ddp"}) for one in (*PASSES, Candidate(loss="chunked"))]
    found = plan([*replicated, *(one.model_copy(update={"sharding": "zero1"}) for one in replicated)])
    chunked = Candidate(loss="chunked")
    assert found.replicas == {
        ddp: Pieces(alone, PASSES[0], replicated[0])
        for ddp, alone in zip(replicated[1:], [*PASSES[1:], chunked], strict=True)
    }
    assert set(found.helpers) == {*PASSES, chunked}
    assert len(found.pieces) == 3, "of ZeRO-1 one is traced"
    both = plan(
        [one.model_copy(update={"loss": loss}) for one in replicated[:3] for loss in ("full", "chunked")]
    )
    assert set(both.halves) == {one.model_copy(update={"loss": "chunked"}) for one in PASSES[1:]}
    assert not plan(replicated[:1]).replicas


def test_passes_that_nobody_asked_for_are_traced_where_that_costs_no_trace_more():
    spread = [one for first in (3, 6) for one in LADDER[first + 1 : first + 3]]
    found = plan(spread)
    assert found.helpers == (PASSES[1], PASSES[2])
    assert found.pieces == {
        spread[2]: Pieces(PASSES[2], PASSES[1], spread[0]),
        spread[3]: Pieces(PASSES[2], PASSES[1], spread[1]),
    }
    assert plan(spread[:2]).helpers == (), "passes of one, with two optimizers, are traced with each"
    known = plan(spread[:2], LADDER[:3])
    assert known.helpers == (PASSES[1],)
    assert known.pieces == {
        one: Pieces(PASSES[1], PASSES[0], LADDER[at]) for at, one in enumerate(spread[:2], 1)
    }
    assert plan(spread, LADDER) == TracePlan({}, {}, {}, ()), "all is at hand"


def test_passes_that_one_candidate_alone_has_with_its_optimizer_are_no_help():
    alone = Candidate(loss="chunked", offload="gradients")
    spread = [one for one in LADDER if one not in PASSES]
    assert set(plan([*spread, alone]).helpers) == set(PASSES)


def test_passes_under_ddp_are_composed_of_those_that_are_at_hand():
    *asked, known = (one.model_copy(update={"sharding": "ddp"}) for one in PASSES)
    assert {pieces.donor for pieces in plan(asked, [known]).replicas.values()} == {known}
