"""A dataset's length histogram: what a file says, the rows made of it, and what counts as a token."""

import json
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.lengths import DISTINCT, DOCUMENTS, Lengths
from autotune.options import RunOptions
from autotune.run.spec import to_spec
from autotune.search.context import SearchContext
from autotune.search.graph_walk import GraphWalk
from autotune.search.selection import rank
from autotune.search.shipped import load_space
from autotune.specs import Goal
from autotune.techniques.axis import Context
from autotune.techniques.data import unpaddable
from autotune.testing.arithmetic import Arithmetic, ok, search
from autotune.trial import Trial
from tests.reasons import reasons

MIXED = Lengths(file="mixed.csv", digest="0", counts=((3, 40), (7, 30), (12, 20), (32, 10)))


def read(tmp_path, text, name="lengths.csv"):
    (tmp_path / name).write_text(text)
    return Lengths.read(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "7\n3\n7\n",
        "length,count\n7, 2\n3,1\n",
        "3,1\n\n7,2",
        '{"7": 2, "3": 1}',
        "[7, 3, 7]",
        "[[7, 2], [3, 1]]",
    ],
)
def test_every_way_to_write_a_histogram_is_read_alike(tmp_path, text):
    lengths = read(tmp_path, text)
    assert lengths.counts == ((3, 1), (7, 2))
    assert (lengths.longest, lengths.samples, lengths.mean) == (7, 3, 6)
    assert len(lengths.digest) == 64


def test_every_mistake_of_a_file_is_told_at_once(tmp_path):
    with pytest.raises(InputError) as refusal:
        read(tmp_path, "7\nseven\n8,2,1\n0,4\n3,-1\n4.5\n")
    told = refusal.value.problems
    assert len(told) == 5
    assert all("lengths.csv, line " in problem for problem in told)
    assert "line 2: 'seven' is not a whole number" in str(refusal.value)
    with pytest.raises(InputError, match=r"entry 1: 3 values(.|\n)*entry 2: True is not a whole number"):
        read(tmp_path, "[4, [1, 2, 3], true]")
    with pytest.raises(InputError) as refusal:
        read(tmp_path, "x\n" * 20)
    assert len(refusal.value.problems) == 10 + 1, "and how many more there are"
    for text in ("", "length,count\n", "7,0\n", "{}"):
        with pytest.raises(InputError, match="holds no length"):
            read(tmp_path, text)
    with pytest.raises(InputError):
        read(tmp_path, "[4,")
    with pytest.raises(InputError):
        Lengths.read(tmp_path / "nowhere.csv")


def test_many_lengths_are_grouped_and_keep_their_mean_and_their_longest(tmp_path):
    lengths = read(tmp_path, "\n".join(str(length) for length in range(1, 5001)) + "\n9000\n")
    assert len(lengths.counts) <= DISTINCT
    assert (lengths.longest, lengths.samples) == (9000, 5001)
    assert lengths.mean == pytest.approx(2502, abs=2)


def test_longer_sequences_are_cut_and_counted():
    cut = MIXED.within(10)
    assert cut.counts == ((3, 40), (7, 30), (10, 30))
    assert cut.cut == 30
    assert MIXED.within(32) is MIXED


def test_packed_rows_hold_every_document_once_and_none_is_over_full():
    padded, packed = (MIXED.rows(sequences, 32, seed=1) for sequences in ("padded", "packed"))
    assert sorted(document for row in packed for document in row) == sorted(row[0] for row in padded)
    assert len(padded) == DOCUMENTS
    assert max(map(sum, packed)) <= 32
    assert MIXED.tokens_per_row("packed", 32) >= 31, "first fit decreasing leaves next to nothing"
    assert MIXED.tokens_per_row("padded", 32) == MIXED.mean == 9
    assert MIXED.rows("packed", 32, seed=1) == packed != MIXED.rows("packed", 32, seed=2)
    assert sum(row[0] for row in padded) / DOCUMENTS == pytest.approx(8.9, rel=0.01), "representative"


def test_rows_that_need_no_mask_come_last():
    for sequences in ("padded", "packed"):
        rows = MIXED.rows(sequences, 32, seed=0)
        assert rows[-1] == (32,)
        assert (32,) not in rows[: len(rows) // 2]


def context_of(target, micro_batch_tokens=32, budget=10**6, space="packing"):
    goal = Goal(target=target, seq_len=micro_batch_tokens, lengths=MIXED, headroom=0.0)
    return SearchContext(load_space(space), Candidate(sequences="padded"), goal, MIXED.mean, budget)


def test_a_global_batch_counts_real_tokens_whatever_the_rows_hold():
    context = context_of("9000")
    padded, packed = (context.batches(Candidate(sequences=rows)) for rows in ("padded", "packed"))
    assert padded.target == packed.target == context.target == 9000
    assert padded.accumulation(10).steps == 100
    assert packed.accumulation(10).steps == -(-9000 // (10 * MIXED.tokens_per_row("packed", 32)))
    assert context_of("512 samples").target == 512 * 9


class AsFastByTheRow(Arithmetic):
    """Packed and padded rows take the same time."""

    def outcome(self, candidate):
        return ok(500, micro=0.1 * candidate.micro_batch, budget=self.budget)


def test_the_search_compares_packed_with_padded_by_real_tokens():
    context = context_of("900")
    history, _ = search(AsFastByTheRow(budget=10**6), context, GraphWalk())
    tried = {trial.candidate.sequences for trial in history}
    assert tried == {"padded", "packed"}
    best = rank(history, context)
    assert best[0].trial.candidate.sequences == "packed"
    worst = next(score for score in best if score.trial.candidate.sequences == "padded")
    assert best[0].tokens_per_second / worst.tokens_per_second == pytest.approx(31 / 9, rel=0.1)


def test_where_packing_is_not_supported_padding_is_what_remains():
    from autotune.outcome import Unsupported

    context, history = context_of("900"), ()
    first = GraphWalk().propose(history, context)
    history += (Trial(number=1, candidate=first.candidate, node=first.node, why="",
                      outcome=Unsupported(reason="no"), seconds=0.0),)  # fmt: skip
    assert GraphWalk().propose(history, context).candidate.sequences == "padded"


def test_rows_and_histogram_belong_together():
    mismatch = [("sequences", "context")]
    assert reasons(Candidate(), Context(with_lengths=False)) == []
    assert reasons(Candidate(sequences="packed"), Context(with_lengths=True)) == []
    assert reasons(Candidate(sequences="packed"), Context(with_lengths=False)) == mismatch
    assert reasons(Candidate(), Context(with_lengths=True)) == mismatch
    assert unpaddable("causal-lm") is None
    assert "masked-lm" in unpaddable("masked-lm")
    assert "your own" in unpaddable("custom")


def test_a_run_takes_its_sequence_length_from_the_histogram(tmp_path):
    (tmp_path / "lengths.json").write_text(json.dumps({"20": 3, "60": 1}))

    def goal(**fields):
        options = RunOptions(
            model="tiny-gpt2",
            target_global_batch="4K",
            device="cpu:1GiB",
            **{"lengths": "lengths.json", **fields},
        )
        return to_spec(options, lambda device, _: device, tmp_path).goal

    assert goal().seq_len == goal().lengths.longest == 60
    assert goal(seq_len=40).lengths.counts == ((20, 3), (40, 1))
    with pytest.raises(InputError) as refusal:
        goal(lengths="nowhere.csv", seq_len=10**7)
    assert refusal.value.about == ("lengths", "seq_len")
    assert Path(goal().lengths.file).name == "lengths.json"
