"""The order of a journal's lines: what may follow what. A record that was edited is never continued. Pure."""

from __future__ import annotations

from autotune.outcome import Lost, Ok
from autotune.run.events import (
    Asked,
    Decided,
    Entry,
    Finished,
    Inspected,
    Interrupted,
    Opened,
    ProofStarted,
    RematchStarted,
    Reopened,
    Retried,
    Searched,
    Started,
    Surveyed,
)
from autotune.run.record import Counted, Record, Tally
from autotune.specs import ABSENT
from autotune.trial import TRIES, ProofFinished, RematchFinished

_BEGINS = "a journal begins with what was asked for, and says it once"


class JournalOrder:
    """Follows a journal line by line, as tuners write it: each start of one goes through the same stages."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._tally = Tally()
        self._probes: dict[int, Started] = {}
        self._inspected = False
        self._unproven = False
        """Whether nothing runs on the device, so that nothing is proven."""
        self._running = False
        """Whether a tuner is at work, as far as the lines say."""
        self._searched = False
        """Whether that tuner has ended its search."""
        self._active: tuple[Counted, int] | None = None
        """The probe, rematch or proof that it has started."""
        self._rematch: RematchStarted | None = None
        """The newest."""

    def refusal(self, entry: Entry) -> str | None:
        """Return why no tuner writes this line here; else take it in and return None."""
        reason = self._reason(entry)
        if reason is None:
            self._take(entry)
        return reason

    @property
    def record(self) -> Record:
        """What was taken in so far."""
        return Record.of(self._entries, self._tally)

    def _reason(self, entry: Entry) -> str | None:
        if not self._entries:
            return None if isinstance(entry, Asked) else _BEGINS
        match entry:  # what is most frequent first: asking for a type that it is not takes longest
            case Started():
                return self._not_searching() or self._started(entry)
            case Finished() | RematchFinished() | ProofFinished():
                return self._not_at_work() or self._finished(entry)
            case Asked():
                return _BEGINS
            case Opened():
                decided = self._tally.decided
                return "the run was decided before" if decided and decided.winner is not None else None
            case Reopened():
                decided = self._tally.decided
                return None if decided and decided.winner is not None else "no winner was decided then"
            case Retried():
                return self._retried(entry)
            case Interrupted():
                return self._not_at_work() or self._interrupted(entry)
            case Inspected():
                before = "the model was inspected before" if self._inspected else None
                return self._not_at_work() or self._busy() or before
            case Surveyed():
                return self._not_ending() or self._surveyed(entry)
            case RematchStarted():
                return self._not_ending() or self._rematch_started(entry)
            case ProofStarted():
                return self._not_ending() or self._proof_started(entry)
            case Decided():
                return self._not_ending() or self._decided(entry)
            case Searched():
                pending = self._tally.pending
                unfinished = f"probe {min(pending)} had no verdict then" if pending else None
                return self._not_searching() or unfinished
            case _:
                return self._not_searching()

    def _not_at_work(self) -> str | None:
        return None if self._running else "no tuner was at work then"

    def _busy(self) -> str | None:
        return None if self._active is None else f"{self._active[0]} {self._active[1]} was under way then"

    def _not_inspected(self) -> str | None:
        found = None if self._inspected else "the model was not inspected before"
        return self._not_at_work() or self._busy() or found

    def _not_searching(self) -> str | None:
        if self._running and self._inspected and not self._searched and self._active is None:
            return None  # of most lines, at one look
        return self._not_inspected() or "the search was over then"

    def _not_ending(self) -> str | None:
        return self._not_inspected() or (None if self._searched else "the search was not over then")

    def _started(self, entry: Started) -> str | None:
        number, known = entry.number, self._probes.get(entry.number)
        pending = sorted(self._tally.pending) if self._tally.pending else ()
        if number not in pending and (known or pending or number != len(self._probes) + 1):
            return f"probe {pending[0] if pending else len(self._probes) + 1} was to be started then"
        if known and (known.candidate, known.node) != (entry.candidate, entry.node):
            return f"probe {number} was of another candidate before"
        if self._tally.tried("probe", number).tries >= TRIES:
            return f"probe {number} was started {TRIES} times before"
        return None

    def _finished(self, entry: Finished | RematchFinished | ProofFinished) -> str | None:
        work: Counted = "proof"
        if isinstance(entry, Finished):
            work = "probe"
        elif isinstance(entry, RematchFinished):
            work, begun = "rematch", self._rematch
            if begun is None or (begun.round, begun.finalists) != (entry.round, entry.finalists):
                return "another round of rematches was under way then"
        if isinstance(entry, ProofFinished) and entry.passed and not isinstance(entry.outcome, Ok):
            return f"a proof that passed did not end with {entry.outcome.kind}"
        if self._active == (work, entry.number):
            return None
        given_up = isinstance(entry.outcome, Lost) and entry.outcome.cause == "tuner"
        tries = self._tally.tried(work, entry.number).tries
        if self._active is None and given_up and tries >= TRIES:
            return None
        return f"{work} {entry.number} was not under way then"

    def _interrupted(self, entry: Interrupted) -> str | None:
        match entry.work:
            case "inspection":
                wrong = self._inspected
            case "trace":
                wrong = not self._inspected or self._active is not None
            case _:
                wrong = self._active != (entry.work, entry.number)
        return f"no {entry.work} that was interrupted was under way then" if wrong else None

    def _proof_started(self, entry: ProofStarted) -> str | None:
        if not self._trained(entry.number):
            return f"probe {entry.number} had not trained then"
        if self._tally.tried("proof", entry.number).tries >= TRIES:
            return f"the proof of probe {entry.number} was started {TRIES} times before"
        return None

    def _rematch_started(self, entry: RematchStarted) -> str | None:
        number, done = entry.number, self._tally.rematches
        if not all(self._trained(finalist) for finalist in {number, *entry.finalists}):
            return "a finalist had not trained then"
        last = done[-1] if done else None
        begun = last is not None and last.round == entry.round
        played = [rematch.number for rematch in done if last and rematch.round == last.round]
        if not begun and (
            entry.round != 1 + (last.round if last else 0) or (last and {*last.finalists} - {*played})
        ):
            return f"round {entry.round} of rematches was not to come then"
        if begun and last is not None and last.finalists != entry.finalists:
            return f"round {entry.round} of rematches was of other finalists"
        if [one for one in entry.finalists if not (begun and one in played)][:1] != [number]:
            return f"the rematch of probe {number} was not to come then"
        if self._tally.tried("rematch", number).tries >= TRIES:
            return f"the rematch of probe {number} was started {TRIES} times before"
        return None

    def _surveyed(self, entry: Surveyed) -> str | None:
        return None if self._trained(entry.winner) else f"probe {entry.winner} had not trained then"

    def _decided(self, entry: Decided) -> str | None:
        if entry.winner is None:
            return None
        if not self._trained(entry.winner):
            return f"probe {entry.winner} had not trained then"
        proven = any(proof.passed and proof.number == entry.winner for proof in self._tally.proofs)
        return None if proven or self._unproven else f"probe {entry.winner} was not proven then"

    def _retried(self, entry: Retried) -> str | None:
        unknown = self.record.unknown
        lost = {work: tuple(e.number for e in unknown if e.lost == work) for work in ("probe", "proof")}
        same = (entry.probes, entry.proofs) == (lost["probe"], lost["proof"])
        return None if same and unknown else "other probes and proofs were lost then"

    def _trained(self, number: int) -> bool:
        """Tell whether a probe has the verdict that it trained."""
        _, finished = self._tally.probes.get(number, (None, None))
        return finished is not None and isinstance(finished.outcome, Ok)

    def _take(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._tally.take(entry)
        match entry:
            case Started(number=number):
                self._probes[number] = entry
                self._active = "probe", number
            case Finished() | RematchFinished() | ProofFinished():
                self._active = None
            case Asked(spec=spec):
                device = spec.get("device")
                self._unproven = isinstance(device, dict) and device.get("kind") in ABSENT
            case Opened():
                self._running, self._searched, self._active = True, False, None
            case Inspected():
                self._inspected = True
            case ProofStarted(number=number):
                self._active = "proof", number
            case RematchStarted(number=number):
                self._active, self._rematch = ("rematch", number), entry
            case Searched():
                self._searched = True
            case Interrupted() | Retried() | Reopened() | Decided():
                self._running, self._active = False, None
