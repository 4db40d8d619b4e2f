"""What every store must do, whatever stands behind it: its tests subclass this."""

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError, StoreError
from autotune.outcome import Oom
from autotune.results.find import open_store
from autotune.results.row import CellRow, Environment, RunRows, TrialRow
from autotune.results.store import Origin, Query, Verdict
from autotune.testing.arithmetic import Arithmetic

HERE = Environment(
    device_kind="cpu", hardware="arithmetic", evidence="measured", packages={"torch": "2.13.0"},
    machine={"processor": "made up"},
)  # fmt: skip
DEVICE = Arithmetic(budget=1000)


def trial(number=1, micro_batch=1, outcome=None, **fields) -> TrialRow:
    candidate = Candidate(micro_batch=micro_batch)
    outcome = outcome or DEVICE.outcome(candidate)
    speed = {"tokens_per_second": 100.0, "interval": 1.0, "global_step": 0.5} if outcome.kind == "ok" else {}
    return TrialRow(
        **{
            "kind": "probe", "number": number, "time": f"2026-11-0{number}T00:00:00+00:00", "environment": HERE,
            "candidate": candidate, "outcome": outcome, "seconds": 1.0, "key": f"key{micro_batch}", "budget": 1000,
            **speed, **fields,
        }
    )  # fmt: skip


def cell(night="20261101T000000Z", name="gpt2-small", **fields) -> CellRow:
    return CellRow(
        **{
            "sweep": "nightly", "night": night, "cell": name, "run": f"cells/{name}", "state": "proven", "asked": "a",
            "model": "gpt2", "lines": 10, "environment": HERE, "budget": 1000, "winner": Candidate(micro_batch=2),
            "alternatives": (Candidate(micro_batch=1),), "tokens_per_second": 100.0, "interval": 1.0, "drift": 0.01,
            "global_step": 0.5, "step_seconds": (0.5, 0.25), "peak": 500, **fields,
        }
    )  # fmt: skip


OOM = Oom(phase="forward", requested=10, message="no room\x00 here")


class StoreContract:
    """`place` is a fixture: where an empty store may be made."""

    @pytest.fixture
    def store(self, place):
        with open_store(place) as store:
            yield store

    def test_what_was_added_is_there_for_the_next_process(self, place):
        row = cell()
        with open_store(place) as store:
            store.add(RunRows(cell=row, trials=(trial(1), trial(2, 8, OOM))))
        with open_store(place, create=False) as store:
            assert store.sweeps() == ("nightly",)
            assert store.nights("nightly") == (row.night,)
            assert store.cells("nightly") == (row,)
            assert store.count() == 2

    def test_the_same_twice_is_there_once(self, store):
        rows = RunRows(cell=cell(), trials=(trial(1), trial(1, kind="proof", turn=1, passed=True)))
        store.add(rows)
        before = list(store.query(Query()))
        store.add([rows, rows])
        assert list(store.query(Query())) == before
        assert len(before) == 2

    def test_the_longer_journal_of_a_cell_counts_whichever_comes_first(self, store):
        short = RunRows(cell=cell(lines=5, state="interrupted", winner=None), trials=(trial(1),))
        long = RunRows(cell=cell(lines=9), trials=(trial(1), trial(2, 2)))
        for rows in (short, long, short):
            store.add(rows)
        (found,) = store.cells("nightly")
        assert found == long.cell
        assert store.count() == 2

    def test_rows_are_flat_with_every_axis_and_text_that_any_database_takes(self, store):
        store.add(RunRows(cell=cell(reason="a\x00b"), trials=(trial(1), trial(2, 8, OOM))))
        fitted, refused = store.query(Query())
        assert fitted["micro_batch"] == 1
        assert fitted["checkpointing"] == "none"
        assert fitted["outcome"] == "ok"
        assert fitted["torch"] == "2.13.0"
        assert fitted["peak"] == DEVICE.outcome(Candidate()).memory.peak()
        assert refused["outcome"] == "oom"
        assert refused["phase"] == "forward"
        assert refused["reason"] == "no room\\x00 here"
        assert refused["tokens_per_second"] is None

    def test_filters_narrow_and_several_values_are_an_or(self, store):
        store.add(RunRows(cell=cell(), trials=(trial(1), trial(2, 8, OOM))))
        store.add(RunRows(cell=cell("20261102T000000Z", "llama-large", model="llama"), trials=(trial(1),)))

        def numbers(**query):
            return [(row["cell"], row["number"]) for row in store.query(Query(**query))]

        assert numbers(outcome=("oom",)) == [("gpt2-small", 2)]
        assert numbers(model=("llama",)) == [("llama-large", 1)]
        assert len(numbers(cell=("gpt2-small", "llama-large"))) == 3
        assert numbers(since="20261102") == [("llama-large", 1)]
        assert numbers(limit=1) == [("llama-large", 1)]
        assert numbers(hardware=("another",)) == []

    def test_a_trial_is_found_again_by_what_it_depends_on(self, store):
        store.add(
            RunRows(cell=cell(), trials=(trial(1, 4), trial(2, 8, OOM), trial(3, 4, kind="proof", turn=1)))
        )
        found = store.find_trial("key4", "2026-10-01")
        assert found is not None
        assert found.outcome == DEVICE.outcome(Candidate(micro_batch=4))
        assert (found.number, found.run) == (1, "cells/gpt2-small")
        assert store.find_trial("key8", "2026-10-01").outcome == OOM
        assert store.find_trial("key4", "2026-11-01T00:00:01") is None, "too old"
        assert store.find_trial("key9", "2026-10-01") is None

    def test_what_was_reused_is_not_found_again(self, store):
        store.add(RunRows(cell=cell(), trials=(trial(1, 4, reused="an older night"),)))
        assert store.find_trial("key4", "2026-10-01") is None
        assert list(store.fits("nightly", ["20261101T000000Z"])) == []

    def test_good_nights_are_proven_not_regressed_and_asked_for_the_same(self, store):
        nights = [f"2026110{day}T000000Z" for day in range(1, 8)]
        fields = [{}, {"state": "failed", "winner": None}, {}, {"asked": "b"}, {}, {}, {}]
        for night, given in zip(nights, fields, strict=True):
            store.add(RunRows(cell=cell(night, **given)))
        store.judge([Verdict(sweep="nightly", night=nights[4], cell="gpt2-small", good=False)])
        before = [row.night for row in store.good("nightly", nights[6], 7)]
        assert before == [nights[0], nights[2], nights[5]]
        assert [row.night for row in store.good("nightly", nights[6], 2)] == [nights[2], nights[5]]
        assert store.speeds("nightly", nights[6], 2) == {"gpt2-small": (100.0, 100.0)}
        assert [row.night for row in store.good("nightly", nights[6], 7, since=nights[2])] == [
            nights[2],
            nights[5],
        ]
        tonight = cell(nights[6])
        assert store.past(tonight, 7) == store.good("nightly", nights[6], 7)
        assert [row.night for row in store.past(tonight, 2, since=nights[5])] == [nights[5]]
        assert store.past(cell(nights[0]), 7) == ()
        assert store.past(cell(nights[6], "another"), 7) == ()

    def test_of_several_proofs_the_first_tells_how_nights_differ(self, store):
        nights = [f"2026110{day}T000000Z" for day in (1, 2)]
        store.add(RunRows(cell=cell(nights[0], proofs=(90.0, 100.0))))
        store.add(RunRows(cell=cell(nights[1])))
        assert store.speeds("nightly", nights[1], 2) == {"gpt2-small": (90.0,)}
        assert store.good("nightly", nights[1], 2)[0].proofs == (90.0, 100.0)

    def test_what_may_be_reused_is_counted_by_what_it_was_measured_for(self, store):
        others = (trial(3, 4, kind="proof", turn=1), trial(2, 16, OOM, reused="another"))
        store.add(RunRows(cell=cell(), trials=(trial(1, 4), trial(2, 8, OOM), trial(3, 4), *others[:1])))
        store.add(RunRows(cell=cell("20261102T000000Z", "other", asked="b"), trials=(trial(1, 4), others[1])))
        of = Origin("a", "", HERE.digest())
        assert store.reusable("2026-10-01") == {of: 2, of._replace(asked="b"): 1}
        assert store.reusable("2026-11-02") == {of: 2}
        assert store.reusable("2026-11-04") == {}

    def test_a_verdict_stays_until_the_cell_has_more_to_say(self, store):
        rows = RunRows(cell=cell(), trials=(trial(),))
        store.add(rows)
        store.judge([Verdict(sweep="nightly", night=rows.cell.night, cell=rows.cell.cell, good=False)])
        store.add(rows)
        assert [one.good for one in store.verdicts("nightly", rows.cell.night)] == [False]
        store.add(RunRows(cell=cell(lines=11)))
        assert store.verdicts("nightly", rows.cell.night) == ()

    def test_memory_is_summed_up_by_candidate_and_the_worst_counts(self, store):
        peak = DEVICE.outcome(Candidate(micro_batch=2)).memory.peak()
        store.add(
            RunRows(
                cell=cell(),
                trials=(
                    trial(1, 2), trial(1, 2, OOM, kind="rematch", turn=1), trial(1, 2, kind="proof", turn=1),
                    trial(2, 8, OOM),
                ),
            )
        )  # fmt: skip
        found = {(fit.proof, fit.oom, fit.peak) for fit in store.fits("nightly", ["20261101T000000Z"])}
        assert found == {(False, True, peak), (True, False, peak), (False, True, None)}
        assert list(store.fits("nightly", [])) == []

    def test_several_threads_write_at_a_time(self, store):
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(lambda n: store.add(RunRows(cell=cell(name=f"c{n}"), trials=(trial(),))), range(24))
            )
        assert store.count() == 24

    def test_several_processes_make_and_fill_one_store(self, place):
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_fill, args=(place, number)) for number in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        with open_store(place, create=False) as store:
            assert store.count() == 3 * 5

    def test_a_newer_schema_is_refused_with_what_to_do(self, place):
        with open_store(place) as store, store.transaction() as connection:
            store.execute(connection, "UPDATE meta SET value = '2'")
        with pytest.raises(InputError) as caught:
            open_store(place)
        assert caught.value.about == ("results",)

    def test_a_store_that_is_not_there_is_not_made_by_reading(self, place):
        with pytest.raises(InputError) as caught:
            open_store(place, create=False)
        assert caught.value.about == ("results",)
        with pytest.raises(InputError):
            open_store(place, create=False)

    def test_what_fails_midway_leaves_nothing(self, store):
        store.add(RunRows(cell=cell()))
        twice = RunRows(cell=cell(name="other"), trials=(trial(1), trial(1)))
        with pytest.raises(StoreError):
            store.add(twice)
        assert [row.cell for row in store.cells("nightly")] == ["gpt2-small"]
        store.add(RunRows(cell=cell(name="other")))
        assert json.dumps([row.cell for row in store.cells("nightly")]) == '["gpt2-small", "other"]'


def _fill(place, number):
    with open_store(place) as store:
        for turn in range(5):
            store.add(RunRows(cell=cell(name=f"p{number}-{turn}"), trials=(trial(),)))
