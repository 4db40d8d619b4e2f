"""What guided search looks at where nothing fits that the decision graph leads to."""

from dataclasses import dataclass, replace

import pytest

from autotune.outcome import Ok, Oom, Unsupported
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
