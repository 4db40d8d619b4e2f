"""Every journal that a tuner writes is accepted, whatever ended it; one that was edited is refused by line."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.candidate import Candidate
from autotune.errors import JournalError, RunEdited
from autotune.executors.executor import ProbeResult
from autotune.interruption import Interruption
from autotune.outcome import Lost
from autotune.run.best import Best
from autotune.run.events import ENTRY
from autotune.run.folder import create_run, load_spec
from autotune.run.journal import parse_journal, read_record
from autotune.run.loop import tune
from autotune.run.order import JournalOrder
from autotune.run.paths import RunPaths
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, ArithmeticTracer, make_spec
from tests.fakes.stopping import Killed, at, ending

SPEC = make_spec()
QUICK = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


class Losing(ArithmeticExecutor):
    """Loses the tries whose numbers it is given, in the order in which they are launched."""

    def __init__(self, lost: set[int], device: Arithmetic) -> None:
        super().__init__(device)
        self._lost = lost

    def run(self, request, folder, **rest) -> ProbeResult:
        finding = super().run(request, folder, **rest)
        if len(self.launched) in self._lost and request.kind != "inspect":
            return ProbeResult(
                answer=Lost(cause="worker", phase="forward", message="ended by SIGKILL"), seconds=1.0
            )
        return finding


def tried(paths: RunPaths, lost: set[int] = frozenset(), foreseen: bool = False, retry: bool = False) -> Best:
    device = BIG if foreseen else Arithmetic(budget=1000)
    tracer = ArithmeticTracer(device) if foreseen else None
    return tune(SPEC, paths, Losing(lost, device), tracer=tracer, retry_lost=retry)


@contextlib.contextmanager
def new_paths():
    folder = Path(tempfile.mkdtemp())
    try:
        yield create_run(SPEC, folder)
    finally:
        shutil.rmtree(folder)


STOPS = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["SIGKILL", "SIGTERM", "SIGINT"]), st.sets(st.integers(1, 6), max_size=3)
    ),
    max_size=8,
)  # fmt: skip
"""Starts of a tuner: the line after which it ends, by which signal, and which of its launches are lost."""


@pytest.mark.parametrize("foreseen", [False, True])
def test_what_a_tuner_writes_is_accepted_and_comes_to_the_same_winner(foreseen):
    with new_paths() as whole:
        expected = tried(whole, foreseen=foreseen)

    @QUICK
    @given(STOPS)
    def holds(stops):
        with new_paths() as paths:
            for number, signal, lost in stops:
                with ending(at(number), signal), contextlib.suppress(Killed, Interruption):
                    tried(paths, lost, foreseen)
                read_record(paths.journal)
            best = tried(paths, foreseen=foreseen)
            record = read_record(paths.journal)
            if not record.unknown:
                assert best.candidate == expected.candidate
            assert best.unknown == record.unknown
            again = tried(paths, foreseen=foreseen, retry=True)
            assert again.candidate == expected.candidate
            assert not read_record(paths.journal).unknown

    holds()


@pytest.fixture(scope="module")
def eventful(tmp_path_factory) -> RunPaths:
    """A decided run with interruptions, a kill, lost tries, holes, and a second look at what was lost."""
    paths = create_run(SPEC, tmp_path_factory.mktemp("eventful"))
    for number, signal, lost in ((5, "SIGTERM", set()), (4, "SIGKILL", set()), (9, "SIGINT", {1, 2, 3})):
        with ending(at(number), signal), contextlib.suppress(Killed, Interruption):
            tried(paths, lost, True)
    tried(paths, {1, 2}, True)
    tried(paths, set(), True, retry=True)
    return paths


def test_the_run_that_is_edited_here_has_lines_of_every_kind(eventful):
    kinds = {entry.type for entry in read_record(eventful.journal).entries}
    assert {"asked", "opened", "inspected", "traced", "skipped", "started", "finished", "interrupted", "retried",
            "searched", "proof_started", "proof_finished", "decided"} <= kinds  # fmt: skip


def edits(lines: list[bytes]) -> list[tuple[str, list[bytes]]]:
    """Return every journal with one line taken out, doubled, moved, or changed."""
    made = []
    for n, line in enumerate(lines):
        made.append((f"without {n + 1}", lines[:n] + lines[n + 1 :]))
        made.append((f"twice {n + 1}", [*lines[: n + 1], line, *lines[n + 1 :]]))
        made.append((f"twice {n + 1} at the end", [*lines, line]))
        if n + 1 < len(lines):
            made.append((f"swapped {n + 1}", [*lines[:n], lines[n + 1], line, *lines[n + 2 :]]))
        if changed := re.sub(rb"(\d)(?=[,}])", lambda m: b"%d" % ((int(m[1]) + 1) % 10), line, count=1):
            made.append(
                (f"changed {n + 1}", [*lines[:n], changed, *lines[n + 1 :]] if changed != line else lines)
            )
    return [(name, edited) for name, edited in made if edited != lines]


def test_an_edited_line_is_refused_where_it_stands(eventful):
    lines = eventful.journal.read_bytes().splitlines()
    for name, edited in edits(lines):
        if name == f"without {len(lines)}":
            continue  # as if the tuner had been killed before
        with pytest.raises(JournalError) as caught:
            parse_journal(b"\n".join(edited) + b"\n", eventful.journal)
        assert caught.value.kind in {"damaged", "out of order"}
        assert f"journal.jsonl:{caught.value.line}: this line " in str(caught.value)


def test_the_order_alone_refuses_or_is_harmless(eventful, tmp_path):
    """Behind seals that a stranger made fit, every journal is refused in words or goes on; nothing is a KeyError."""
    lines = [
        re.sub(rb',"seal":"[0-9a-f]+"', b"", line) for line in eventful.journal.read_bytes().splitlines()
    ]
    refused = 0
    for _, edited in edits(lines):
        order = JournalOrder()
        with contextlib.suppress(ValueError):  # a changed value that is none
            reasons = [order.refusal(ENTRY.validate_json(line)) for line in edited]
            refused += any(reasons)
            _ = order.record.history, order.record.proofs, order.record.unknown, order.record.pending
    assert refused > len(lines)


@QUICK
@given(st.data())
def test_any_lines_in_any_order_are_refused_in_words_or_accepted(eventful, data):
    entries = read_record(eventful.journal).entries
    order = JournalOrder()
    for entry in data.draw(st.lists(st.sampled_from(entries), max_size=12)):
        reason = order.refusal(entry)
        assert reason is None or (len(reason) > 10 and reason[0].islower())
    _ = order.record.history, order.record.proofs, order.record.unknown, order.record.pending


def test_an_edited_spec_is_refused_with_what_differs(tmp_path):
    paths = create_run(SPEC, tmp_path)
    with ending(at(6), "SIGTERM"), contextlib.suppress(Interruption):
        tried(paths)
    text = paths.spec.read_text()
    paths.spec.write_text(text.replace("seq_len: 100", "seq_len: 200").replace("seed: 0", "seed: 7"))
    with pytest.raises(RunEdited) as error:
        load_spec(paths)
    assert error.value.changed == ("goal.seq_len", "seed")
    assert "goal.seq_len is 200 and was 100; seed is 7 and was 0" in str(error.value)
    assert "start a new run" in str(error.value)
    with pytest.raises(RunEdited):  # whoever hands over a spec
        tune(SPEC.model_copy(update={"seed": 7}), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    paths.spec.write_text(text)
    assert load_spec(paths) == SPEC
    assert tried(paths).candidate == Candidate(micro_batch=11)


def test_a_started_line_that_was_taken_out_is_no_key_error(tmp_path):
    paths = create_run(SPEC, tmp_path)
    tried(paths)
    lines = paths.journal.read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["type"] != "started"]
    paths.journal.write_text("\n".join(kept) + "\n")
    with pytest.raises(JournalError) as caught:
        read_record(paths.journal)
    assert caught.value.kind == "out of order"
