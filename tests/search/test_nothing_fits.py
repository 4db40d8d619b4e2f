"""What guided search looks at where nothing fits that the decision graph leads to."""

from dataclasses import dataclass, replace

import pytest

from autotune.candidate import Candidate
from autotune.lengths import Lengths
from autotune.outcome import Ok, Oom, Unsupported
from autotune.search.context import SearchContext
from autotune.search.shipped import load_space
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Try
from autotune.specs import Goal
from autotune.testing.arithmetic import ok
from autotune.trial import Trial
from tests.search.test_guided import UNIT, Techniques, make_context, roomy, search


@dataclass(frozen=True)
class Vocabulary(Techniques):
    """The same, of a model whose logits are larger than all else, unless its loss is chunked."""

    logits: int = 0

    def in_units(self, unit):
        plain = super().in_units(unit)
        return Vocabulary(**{**vars(plain), "logits": unit * self.logits})

    def of(self, candidate):
        logits = 0 if candidate.loss == "chunked" else self.logits
        larger = {name: getattr(self, name) + logits for name in ("activations", "checkpointed")}
        return replace(self, **larger, logits=0)

    def outcome(self, candidate):
        return super(Vocabulary, self.of(candidate)).outcome(candidate)


def test_where_nothing_fits_that_the_graph_leads_to_the_whole_space_is_looked_at():
    device = Vocabulary(budget=900, logits=1000).in_units(UNIT)
    history, traced, done = search(device, make_context(device))
    assert all(isinstance(trial.outcome, Ok) for trial in history), "no probe of what is known not to fit"
    assert all(trial.candidate.loss == "chunked" for trial in history)
    assert history[0].node == "guided"
    assert history[-1].candidate.compile == "regional", "once something fits the search is for the fastest"
    assert done.reason == "settled"
    assert len(traced) < len(make_context(device).ladder.rungs) / 3


def test_where_it_was_not_memory_that_was_lacking_the_rest_of_the_space_is_not_tried():
    device = roomy()
    context = make_context(device)
    refused = Unsupported(reason="no such kernel")
    verdicts = dict.fromkeys(context.ladder.rungs, refused)
    history, _, done = search(device, context, verdicts)
    assert all(trial.node != "guided" for trial in history), "nothing but the graph"
    assert done.reason == "exhausted"


@pytest.mark.parametrize("simulated", [False, True])
def test_that_nothing_fits_is_said_after_one_probe_where_nothing_of_the_space_does(simulated):
    device = Vocabulary(budget=900, logits=1000).in_units(UNIT)
    history, traced, done = search(device, make_context(device, "basic", simulated=simulated))
    assert [type(trial.outcome) for trial in history] == [Oom]
    assert done.reason == "exhausted"
    assert len(traced) == len(set(traced))


def test_so_it_is_where_probes_of_the_graph_ran_out_of_memory_that_were_predicted_to_fit():
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device)
    over = Oom(phase="forward", requested=100 * UNIT, free=UNIT)
    history, _, _ = search(
        device, context, {rung: over for rung in context.ladder.rungs if rung.loss == "full"}
    )
    assert any(trial.node != "guided" for trial in history)
    fitting = [trial.candidate for trial in history if isinstance(trial.outcome, Ok)]
    assert fitting
    assert all(candidate.loss == "chunked" for candidate in fitting)


@pytest.mark.parametrize("name", ["graph", "guided", "grid", "random"])
@pytest.mark.parametrize(
    ("target", "gpus", "exact"), [("2 samples", 1, False), ("8 samples", 8, False), ("512 samples", 1, True)]
)
def test_rows_that_do_not_make_up_the_global_batch_are_passed_over(name, target, gpus, exact):
    lengths = Lengths(file="m.csv", digest="0", counts=((3, 40), (7, 30), (12, 20), (32, 10)))
    context = SearchContext(
        space=load_space("packing"), base=Candidate(sequences="padded", sharding="ddp" if gpus > 1 else "none"),
        tokens_per_sample=32, budget=10**9,
        goal=Goal(target=target, seq_len=32, lengths=lengths, gpus=gpus, exact=exact),
    )  # fmt: skip
    context.check()
    assert context.batches(Candidate(sequences="packed")).useful == ()
    history = ()
    while isinstance(found := STRATEGIES[name].propose(history, context), Try) and len(history) < 40:
        assert found.candidate.sequences != "packed"
        outcome = ok(10**6, micro=1.0, step=0.0)
        history += (
            Trial(
                number=len(history) + 1, candidate=found.candidate, node=found.node, why=found.why, outcome=outcome,
                seconds=1.0,
            ),
        )  # fmt: skip
    assert history


def test_a_global_batch_too_small_for_all_devices_is_searched_where_some_can_share_a_model():
    context = SearchContext(
        space=load_space("tensor_parallel"), base=Candidate(sharding="fsdp2"), tokens_per_sample=1024, budget=10**10,
        goal=Goal(target="4 samples", seq_len=1024, gpus=8),
    )  # fmt: skip
    context.check()
    assert not context.is_open(Candidate(sharding="fsdp2"))
    assert context.is_open(Candidate(sharding="fsdp2", tensor_parallel=2))
