"""The bench of peers on a grid of arithmetic: what searches deliver and are charged, and which targets are missed."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import RecordedGrid, read_grid
from autotune.outcome import Ok
from autotune.testing.grids import COLD, START, TRACE, arithmetic_lines, write_grid
from autotune.units import MIB
from benchmarks import grid_definitions
from benchmarks.grid_definitions import Definition
from benchmarks.grid_oracle import Oracle, compare, rounds_of
from benchmarks.peer_searches import PEERS, Peer, Tried
from benchmarks.peers import (
    OURS,
    ReplaySession,
    Result,
    arithmetic_grid,
    missed_by,
    result_of,
    row_of,
    run_of,
    searched,
    table_of,
)
from benchmarks.peers_live import LiveSession, rows_of, unsafe
from tests.search.test_guided import Techniques

WITHOUT_TORCH = [peer for peer in PEERS if not peer.packages]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return Oracle(read_grid(arithmetic_grid(tmp_path_factory.mktemp("grid"))))


def test_the_exhaustive_search_delivers_the_fastest(oracle):
    (grid,) = (peer for peer in PEERS if peer.name == "grid")
    result = searched(grid, oracle)
    assert result.delivered == oracle.best
    assert oracle.share(result.delivered) == 1.0
    ended = [
        COLD,
        *(
            point.seconds
            for one, point in oracle.grid.points.items()
            if one in {t.candidate for t in result.tried}
        ),
    ]
    assert result.seconds == pytest.approx(sum(ended))


@pytest.mark.parametrize("peer", WITHOUT_TORCH, ids=lambda peer: peer.name)
def test_a_search_delivers_what_it_tried_and_it_fits(peer, oracle):
    result = searched(peer, oracle)
    assert result.delivered in {one.candidate for one in result.tried if isinstance(one.outcome, Ok)}
    assert result.seconds == result.tried[-1].ended
    assert oracle.share(result.delivered) > 0.9
    assert searched(peer, oracle) == result, "a replay comes to the same end each time"


def test_searches_of_the_micro_batch_go_their_own_ways(oracle):
    sizes = {
        peer.name: [one.candidate.micro_batch for one in searched(peer, oracle).tried]
        for peer in WITHOUT_TORCH
    }
    assert sizes["Composer"] == [8, 4]
    assert sizes["Ludwig"] == [2, 4, 8]
    assert sizes["DeepSpeed Autotuning"][:2] == [1, 1]
    assert len(set(sizes["DeepSpeed Autotuning"][1:])) == len(sizes["DeepSpeed Autotuning"][1:]), (
        "none is repeated"
    )


def made(**changes):
    return Peer("made", lambda _: None, "", keeps_batch=True, **changes)


def test_trials_of_one_process_start_once_and_pay_for_their_steps(oracle):
    plain, refused = Candidate(micro_batch=4), Candidate(micro_batch=8)
    cold = ReplaySession(oracle, made(in_process=False))
    cold.probe(plain)
    cold.probe(plain)
    assert cold.elapsed == 2 * (COLD + 1.0)
    forked = ReplaySession(oracle, made(in_process=False, warm=True))
    forked.probe(plain)
    forked.probe(plain)
    assert forked.elapsed == COLD + 2 * (START + 1.0)
    shared = ReplaySession(oracle, made(in_process=True, keeps_model=True))
    shared.probe(refused, steps=3)
    assert shared.elapsed == COLD
    outcome = shared.probe(plain, steps=3)
    timing = outcome.timing
    steps = 3 * (timing.last_micro_step.mean + timing.optimizer_step.mean)
    assert shared.elapsed == pytest.approx(COLD + steps)


def test_a_run_of_ours_is_charged_its_inspection_traces_and_probes(oracle, tmp_path):
    result = run_of(oracle, "graph", tmp_path)
    probes = sum(oracle.grid.points[one.candidate].seconds for one in result.tried)
    traces = result.seconds - START - probes
    assert traces > 0
    assert traces % (START + TRACE) == pytest.approx(0.0)
    assert result.delivered == oracle.best
    assert result.known_after(1.0, oracle) <= result.seconds
    assert result.known_after(2.0, oracle) is None


LADDER = Definition("made", "made", "gpt2", {}, 64, "cpu:1GiB", "8 samples", axes=grid_definitions.LADDER)


@pytest.mark.parametrize("budget", [306, 492, 645])
def test_ours_finds_the_fastest_of_a_whole_ladder_in_few_probes(budget, tmp_path):
    device = Techniques(budget=budget).in_units(16 * MIB)
    path = write_grid(tmp_path / "grid.jsonl", arithmetic_lines(device, LADDER.space(), target="8 samples"))
    whole = Oracle(read_grid(path))
    assert whole.oom_share() > 0.05
    own = run_of(whole, OURS, tmp_path / "run")
    rows = [row_of(own, own, whole)]
    assert missed_by(rows) == []
    assert rows[0]["share"] == 1.0


def row(peer=OURS, grid="a", share=1.0, probes=3, oom=0, known=5.0, seconds=10.0):
    told = {
        "grid": grid,
        "peer": peer,
        "how": "ours" if peer == OURS else "algorithm",
        "share": share,
        "probes": probes,
        "oom": oom,
    }
    return told | {"known_after": known, "seconds": seconds}


@pytest.mark.parametrize(
    ("rows", "missed"),
    [
        ([row(), row("other")], 0),
        ([row(share=0.98)], 1),
        ([row(share=0.96), row(grid="b"), row(grid="c")], 1),
        ([row(probes=7)], 1),
        ([row(probes=9), row(grid="b"), row(grid="c")], 0),
        ([row(oom=2)], 1),
        ([row(), row("other", known=11.0)], 1),
        ([row(), row("other", known=None)], 1),
    ],
)
def test_a_missed_target_is_told(rows, missed):
    assert len(missed_by(rows)) == missed


def test_the_table_says_which_targets_are_missed_and_what_survives():
    def shown(rows, missed):
        console = Console(width=220, record=True, file=io.StringIO())
        console.print(table_of(rows, missed))
        return console.export_text()

    rows = [row(share=0.5) | {"keeps_global_batch": True}]
    text = shown(rows, missed_by(rows))
    assert "targets that are missed" in text
    assert f"{OURS} on a: at least 97% of the fastest: 50.0%" in text
    assert "survives" in text
    live = shown([{**rows[0], "survives": False}], [])
    assert "0 of 1" in live
    assert "no target is missed" in live


def test_only_peers_bound_when_ours_has_to_know():
    late = row("graph", known=None) | {"how": "ours"}
    assert missed_by([row(), late]) == []


def test_a_peer_that_delivers_nothing_is_known_from_the_start(oracle):
    ours = Result("a", OURS, "ours", oracle.best, 5.0, (), True)
    assert row_of(Result("a", "other", "", None, 1.0, (), False), ours, oracle)["known_after"] == 0.0


def test_live_probes_are_measured_once_for_all_searches(oracle):
    measured = []

    class Recorder:
        def measure(self, header, candidate):
            measured.append(candidate)
            return oracle.grid.points[candidate]

    empty = Oracle(RecordedGrid.of([oracle.grid.header], "live"))
    results = [result_of(LiveSession(empty, peer, recorder=Recorder())) for peer in WITHOUT_TORCH]
    assert len(set(measured)) == len(measured)
    assert [(one.delivered, one.seconds) for one in results] == [
        (one.delivered, one.seconds) for one in (searched(peer, oracle) for peer in WITHOUT_TORCH)
    ]


def slower(timing, factor=2.0):
    parts = ("micro_step", "last_micro_step", "optimizer_step")
    found = {name: getattr(timing, name) for name in parts if getattr(timing, name) is not None}
    return timing.model_copy(
        update={name: part.model_copy(update={"mean": factor * part.mean}) for name, part in found.items()}
    )


def remeasured(oracle, **speeds):
    """Return a case whose delivered candidates were measured again: so many times as fast as the first time."""
    grid = oracle.grid
    repeats, speeds = {}, {Candidate(micro_batch=int(name[1:])): factors for name, factors in speeds.items()}
    for one, factors in speeds.items():
        point = grid.points[one]
        repeats[one] = tuple(
            point.model_copy(
                update={"round": number, "outcome": point.outcome.model_copy(
                    update={"timing": slower(point.outcome.timing, 1 / factor)})}
            )
            for number, factor in enumerate(factors, start=1)
        )  # fmt: skip
    again = replace(grid, repeats=repeats)
    return Oracle(replace(again, equals=compare(rounds_of(again, repeats))))


def test_a_live_search_is_judged_by_what_survives_and_by_the_rounds(oracle):
    fits, small, refused = Candidate(micro_batch=4), Candidate(micro_batch=1), Candidate(micro_batch=8)
    points = oracle.grid.points
    own = Result("a", OURS, "ours", fits, 9.0, (Tried(fits, points[fits].outcome, 5.0),), True)
    others = [Result("a", "other", "", one, 4.0, (), True) for one in (refused, small)]
    survived = {one: points[one].outcome for one in (fits, small, refused)}
    case = remeasured(oracle, x4=(2.0, 2.01, 1.99), x1=(2.0, 2.01, 1.99))
    first, second, third = rows_of([own, *others], survived, case)
    assert (first["share"], first["survives"], first["known_after"]) == (1.0, True, 5.0)
    assert (second["share"], second["survives"], second["known_after"]) == (0.0, False, 0.0)
    assert 0 < third["share"] < 1
    assert third["known_after"] == 5.0
    assert len(first["rounds"]) == 3
    assert unsafe([first, second]) == []
    assert len(unsafe([first | {"survives": False}])) == 1
    # What was the slower of two when it was probed may be the faster in the rounds, and these decide.
    turned, _, one = rows_of([own, *others], survived, remeasured(oracle, x4=(0.1, 0.11), x1=(1.0, 1.01)))
    assert turned["share"] < 1 == one["share"]


def test_ours_knows_what_it_has_probed_whatever_noise_made_of_its_speed(oracle):
    fits = Candidate(micro_batch=4)
    first = oracle.grid.points[fits].outcome
    slow = first.model_copy(update={"timing": slower(first.timing)})
    noisy = Result("a", OURS, "ours", fits, 9.0, (Tried(fits, slow, 5.0),), True)
    other = Result("a", "other", "", fits, 4.0, (), True)
    _, same = rows_of([noisy, other], {fits: first}, remeasured(oracle, x4=(1.0, 1.0)))
    assert same["known_after"] == 5.0
