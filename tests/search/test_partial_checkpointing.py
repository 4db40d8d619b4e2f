"""How guided search chooses the number of checkpointed blocks, on devices made of arithmetic."""

from dataclasses import dataclass, replace

import pytest

from autotune.candidate import Candidate
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.outcome import Ok, Oom, Unsupported
from autotune.search.context import SearchContext
from autotune.search.guided import Guided
from autotune.search.shipped import load_space
from autotune.search.strategy import Done, TraceFirst, Try
from autotune.site import MachineFacts, Site
from autotune.specs import DeviceFacts, Goal
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.testing.grids import FACTS
from autotune.trial import Trial
from autotune.units import MIB

UNIT = 64 * MIB


@dataclass(frozen=True)
class Deep(Arithmetic):
    """A device that holds a model of many equal blocks: bytes and time lie on a line between none and all of them."""

    blocks: int = 24
    shrunk: float = 1.0
    """By what a prediction of activations is too low."""

    def share(self, candidate):
        if candidate.checkpointing == "none":
            return 0.0
        return 1.0 if candidate.checkpointed_blocks == "all" else candidate.checkpointed_blocks / self.blocks

    def of(self, candidate):
        """Return the device whose checkpointed samples take what those of this candidate do."""
        spared = round(self.share(candidate) * (self.activations - self.checkpointed))
        return replace(self, checkpointed=self.activations - spared)

    def outcome(self, candidate):
        return super(Deep, self.of(candidate)).outcome(candidate)

    def peak(self, candidate):
        return super(Deep, replace(self.of(candidate), budget=1 << 60)).outcome(candidate).memory.peak()

    def times(self, candidate):
        computed = self.per_sample * candidate.micro_batch * (1 + 0.33 * self.share(candidate))
        return self.overhead + computed, 0.01 if candidate.offload == "none" else 5.0

    def traced(self, rung):
        device = self.of(rung)
        lower = {name: round(getattr(device, name) / self.shrunk) for name in ("activations", "checkpointed")}
        return timeline(replace(device, **lower), rung)


def deep(budget, **changes):
    plain = Arithmetic(budget=budget).in_units(UNIT)
    return Deep(**(vars(plain) | {"overhead": 0.002} | changes))


def make_context(device, numbers=("any",), simulated=False, samples=96):
    space = load_space("basic")
    space = space.model_copy(update={"axes": space.axes | {"checkpointed_blocks": numbers}})
    facts = DeviceFacts(
        kind="cuda", name="a GPU", torch_name="cuda:0", budget=device.budget, total=device.budget,
        dtypes=("bf16",), simulated=simulated,
    )  # fmt: skip
    goal = Goal.model_validate({"target": f"{samples} samples", "seq_len": 64, "headroom": 0.0})
    return SearchContext(
        space=space, base=Candidate(), goal=goal, tokens_per_sample=64, budget=device.budget,
        predictor=Predictor({}, DeviceOverhead("cpu", 0, 0)), speed=device,
        model=FACTS.model_copy(update={"blocks": device.blocks}),
        site=Site(device=facts, machine=MachineFacts()),
    )  # fmt: skip


def told(device, rung):
    """Return the rungs of which the trace of one tells: itself, and of many blocks all but the first and the last."""
    number = rung.checkpointed_blocks
    if number == "all" or device.blocks < 8:
        return [rung]
    return list(dict.fromkeys([rung, *(some(rung, count) for count in range(2, device.blocks - 1))]))


def some(rung, count):
    return rung.model_copy(update={"checkpointed_blocks": count})


def search(device, context, verdict=None):
    """Search to the end; return the trials and what was traced."""
    history, traced = (), []
    while not isinstance(decision := Guided().propose(history, context), Done):
        assert decision == Guided().propose(history, context), "a pure function of history"
        rungs = decision.rungs if isinstance(decision, TraceFirst) else (decision.candidate.rung(),)
        if new := [rung for rung in rungs if not context.predictor.covers(rung)]:
            predictor = context.predictor
            for rung in new:
                for one in told(device, rung):
                    predictor = predictor.with_timeline(one, device.traced(one))
            context = context.informed(predictor, device)
            traced += new
            continue
        assert isinstance(decision, Try)
        outcome = (verdict and verdict(decision.candidate)) or device.outcome(decision.candidate)
        history += (
            Trial(
                number=len(history) + 1, candidate=decision.candidate, node=decision.node, why=decision.why,
                outcome=outcome, seconds=1.0,
            ),
        )  # fmt: skip
        assert len(history) < 20
    return history, traced


def seconds(device, context, candidate):
    micro, step = device.times(candidate)
    return context.batches(candidate).accumulation(candidate.micro_batch).steps * micro + step


def best(device, context, history):
    trained = (trial.candidate for trial in history if isinstance(trial.outcome, Ok))
    return min(trained, key=lambda one: seconds(device, context, one))


def oracle(device, context):
    """Return the seconds of the fastest of all candidates that fit, whatever their number of blocks."""
    full = Candidate(checkpointing="full")
    rungs = [Candidate(), full, *(some(full, count) for count in range(1, device.blocks))]
    rungs += [rung.model_copy(update={"offload": "optimizer"}) for rung in rungs]
    sizes = list(context.batches(Candidate()).useful)
    return min(
        seconds(device, context, one)
        for one in (rung.at(size) for rung in rungs for size in sizes)
        if isinstance(device.outcome(one), Ok)
    )


def count(device, candidate):
    return round(device.share(candidate) * device.blocks)


BUDGETS = (420, 430, 440, 448, 452, 480, 520, 700)


@pytest.mark.parametrize("overhead", [0.0, 0.002, 0.03])
@pytest.mark.parametrize("budget", BUDGETS)
def test_what_wins_is_within_the_margin_of_the_fastest_of_all_numbers(budget, overhead):
    device = deep(budget, overhead=overhead)
    context = make_context(device, simulated=True)
    history, _ = search(device, context)
    found = seconds(device, context, best(device, context, history))
    assert found <= oracle(device, context) * 1.02
    alone = make_context(device, numbers=("all",), simulated=True)
    without, _ = search(device, alone)
    assert found <= seconds(device, context, best(device, alone, without)) * 1.001, "it never loses"


def test_the_more_memory_there_is_the_fewer_blocks_are_checkpointed_and_no_block_more_than_needed():
    counts = []
    for budget in (415, 425, 435, 445):  # plain training takes 450
        device = deep(budget, overhead=0.0)
        context = make_context(device, simulated=True)
        history, _ = search(device, context)
        won = best(device, context, history)
        counts.append(count(device, won))
        fewer = some(won, counts[-1] - 1)
        assert device.peak(won) <= device.budget < device.peak(fewer)
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == len(counts)


def test_it_pays_where_plain_training_does_not_fit():
    device = deep(440, overhead=0.0)
    context = make_context(device, simulated=True)
    found, whole = (
        seconds(device, one, best(device, one, search(device, one)[0]))
        for one in (context, make_context(device, numbers=("all",), simulated=True))
    )
    assert found < 0.9 * whole


def test_one_trace_of_some_blocks_is_all_that_it_asks_for():
    device = deep(440)
    history, traced = search(device, make_context(device))
    numbers = [rung.checkpointed_blocks for rung in traced if rung.checkpointed_blocks != "all"]
    assert numbers == [device.blocks // 2]
    assert history[-1].why.endswith("fewer checkpointed blocks may not fit")


def test_where_there_is_memory_for_all_no_number_is_looked_for():
    device = deep(6000)
    history, traced = search(device, make_context(device))
    assert not [one for one in traced if one.checkpointed_blocks != "all"]
    assert best(device, make_context(device), history).checkpointing == "none"


def test_after_a_probe_that_ran_out_of_memory_more_blocks_are_checkpointed():
    device = deep(440, shrunk=1.4)
    history, _ = search(device, make_context(device))
    partly = [trial for trial in history if trial.candidate.checkpointed_blocks != "all"]
    failed = [trial for trial in partly if isinstance(trial.outcome, Oom)]
    later = [trial for trial in partly if isinstance(trial.outcome, Ok)]
    assert failed
    assert later
    assert later[-1].candidate.checkpointed_blocks > max(one.candidate.checkpointed_blocks for one in failed)
    assert len(failed) == 1


def test_of_few_blocks_each_number_is_traced_for_itself_and_those_alone_that_may_win():
    device = deep(440, blocks=6)
    context = make_context(device, simulated=True)
    history, traced = search(device, context)
    numbers = [rung.checkpointed_blocks for rung in traced if rung.checkpointed_blocks != "all"]
    assert 0 < len(numbers) <= 2
    assert seconds(device, context, best(device, context, history)) <= oracle(device, context) * 1.02


def test_numbers_that_a_space_lists_are_the_only_ones():
    device = deep(440)
    history, traced = search(device, make_context(device, numbers=("all", 4, 12, 20)))
    rungs = [*traced, *(trial.candidate for trial in history)]
    assert {rung.checkpointed_blocks for rung in rungs} <= {"all", 4, 12, 20}
    assert {trial.candidate.checkpointed_blocks for trial in history} & {4, 12, 20}


def test_where_some_blocks_cannot_be_checkpointed_no_other_number_is_tried():
    device = deep(440)
    refused = Unsupported(reason="only all blocks, or none")
    history, _ = search(
        device, make_context(device), lambda one: refused if one.checkpointed_blocks != "all" else None
    )
    assert sum(trial.candidate.checkpointed_blocks != "all" for trial in history) == 1
