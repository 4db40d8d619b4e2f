"""What would fit by consent alone, where nothing else does: values that change what is learned, on the leanest rung."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autotune.candidate import Candidate
from autotune.errors import ProbeError
from autotune.probe.protocol import ProbeKind, ProbeRequest
from autotune.run.events import Offer
from autotune.run.predictions import Predictions
from autotune.run.preflight import Preflight
from autotune.search.context import SearchContext
from autotune.search.graph_walk import edge_of
from autotune.search.strategy import Done
from autotune.search.wording import expected
from autotune.specs import ModelFacts
from autotune.techniques.check import Refusal
from autotune.techniques.consent import BY_CONSENT, ByConsent, leaves_alone
from autotune.techniques.families import title as title_of
from autotune.trial import History
from autotune.units import format_bytes

SECONDS = 90.0
"""Time for all traces together, after which what is left is not priced: the run is over, and somebody waits."""
SHORT = 160
"""Characters of why something was not priced."""


class Offering:
    """Prices what a search was not allowed to try. Every value alone, at the smallest micro-batch: few traces."""

    def __init__(
        self,
        context: SearchContext,
        preflight: Preflight,
        predictions: Predictions | None,
        request: Callable[[Candidate, ProbeKind], ProbeRequest],
        tracing: Callable[[Sequence[Candidate]], None] = lambda _: None,
    ) -> None:
        """`predictions` of None prices nothing. `tracing` is told what is about to be traced."""
        self._context = context
        self._preflight = preflight
        self._predictions = predictions
        self._request = request
        self._tracing = tracing

    def offers(self, done: Done, history: History) -> tuple[Offer, ...]:
        """Return what may be allowed, the smallest change first.

        Nothing where a limit or a crash ended the search, for then the space itself has more to try; nor where no rung
        lacked memory; nor of a command, whose mapping says what it can be told.
        """
        if self._context.source is not None and self._context.source.command is not None:
            return ()
        if done.reason not in {"exhausted", "settled"}:
            return ()
        measured = self._context.site is None or not self._context.site.device.simulated
        # What is predicted is no surer for predictions that agree with it.
        rungs = self._leanest_first(done, history, history if measured else ())
        found = list(self._placed(rungs))
        reasons = self._hopeless([candidate for _, candidate, _ in found])
        reasons |= self._trace([one for _, one, refused in found if refused is None and one not in reasons])
        offers = []
        for one, candidate, refused in found:
            prediction = None
            if self._predictions is not None and refused is None:
                prediction = self._predictions.predict(candidate, history if measured else ())
            why = refused.reason if refused is not None else reasons.get(candidate, "")
            offers.append(
                Offer(
                    name=one.name, candidate=candidate, prediction=prediction,
                    reason="" if prediction is not None else _short(why),
                )
            )  # fmt: skip
        return tuple(offers)

    def _leanest_first(self, done: Done, history: History, taught: History) -> list[Candidate]:
        """Return the rungs that lacked memory: by predicted peak where all have one, else the last one tried first."""
        passed = [skip.candidate.rung() for skip in done.skipped]
        failed = [
            trial.candidate.rung() for trial in history if edge_of(trial, self._context).startswith("oom")
        ]
        rungs = list(dict.fromkeys(reversed((*passed, *failed))))
        if self._predictions is None:
            return rungs
        predictor = self._predictions.predictor.calibrated(taught, self._context.budget)
        bounds = [predictor.bounds(self._smallest(rung)) for rung in rungs]
        peaks = {rung: bound.mean for rung, bound in zip(rungs, bounds, strict=True) if bound is not None}
        return rungs if len(peaks) < len(rungs) else sorted(rungs, key=lambda rung: peaks[rung])

    def _placed(self, rungs: Sequence[Candidate]) -> Iterator[tuple[ByConsent, Candidate, Refusal | None]]:
        """Yield what may be allowed, each on the leanest rung that it goes with, or with what is missing for it.

        What this device or model cannot run is left out, and what the space lists already.
        """
        for one in BY_CONSENT:
            if one.value in self._context.space.axes.get(one.axis, ()):
                continue
            for rung in rungs:
                candidate = self._smallest(rung.model_copy(update={one.axis: one.value}))
                if not leaves_alone(one.axis, getattr(rung, one.axis)) or self._context.passes_over(
                    candidate
                ):
                    continue
                refused = self._preflight.refusal(candidate)
                if refused is not None and refused.cause in {"axes", "space", "room"}:
                    continue  # another rung may go with it
                if refused is None or refused.cause in {"package", "compiler"}:
                    yield one, candidate, refused
                break

    def _hopeless(self, candidates: Sequence[Candidate]) -> dict[Candidate, str]:
        """Return why some need no trace: what has to be on the device at once is more than there is."""
        if self._predictions is None or self._context.model is None:
            return {}
        least = {one: _least_bytes(one, self._context.model) for one in candidates}
        return {
            one: f"weights{' and gradients' if one.adapters == 'none' else ''} alone take {format_bytes(bytes_)}"
            for one, bytes_ in least.items()
            if bytes_ > self._context.usable
        }

    def _trace(self, candidates: Sequence[Candidate]) -> dict[Candidate, str]:
        """Trace what is not known, in bounded time; return why there is no trace of some."""
        if self._predictions is None:
            return {}
        new = [candidate for candidate in candidates if not self._predictions.knows(candidate)]
        if not new:
            return {}
        self._tracing(new)
        first, *others = new
        request = self._request(first, "trace").model_copy(update={"also": tuple(others)})
        try:
            lines = self._predictions.trace(request, SECONDS)
        except ProbeError as error:  # the run's own end is told all the same
            return dict.fromkeys(new, str(error))
        return {line.candidate: line.reason for line in lines if line.reason}

    def _smallest(self, rung: Candidate) -> Candidate:
        return rung.at(self._context.batches(rung).above(0) or 1)


def _least_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes of weights and gradients that one device surely holds at once; 0 where that is not plain."""
    whole = candidate.sharding in {"none", "ddp", "zero1"} and candidate.tensor_parallel == 1
    if (
        not whole
        or candidate.engine != "torch"
        or candidate.offload == "full"
        or candidate.adapters == "qlora"
    ):
        return 0
    gradients = 0 if candidate.adapters != "none" else facts.trainable_parameters
    if candidate.offload == "gradients" or candidate.optimizer_in_backward:
        gradients = 0
    return (2 if candidate.precision == "bf16-pure" else 4) * (facts.parameters + gradients)


def fits(offer: Offer, context: SearchContext) -> bool:
    """Tell whether something is predicted to fit, with the headroom."""
    return offer.prediction is not None and offer.prediction.peak <= context.usable


def offer_lines(offers: Sequence[Offer], context: SearchContext) -> tuple[str, ...]:
    """Return what people read of it: what fits and the option to type, what comes nearest, and what is not priced."""
    if not offers:
        return ()
    usable = format_bytes(context.usable)
    if all(offer.prediction is None and not offer.reason for offer in offers):
        names = ", ".join(offer.name for offer in offers)
        return (f"not tried without consent, and not priced without predictions (--allow): {names}",)
    lines = [
        f"--allow {offer.name}: predicted to fit, {expected(offer.prediction)} of {usable} "
        f"({title_of(offer.candidate)}, micro-batch {offer.candidate.micro_batch}); {_how(offer)}"
        for offer in offers
        if offer.prediction is not None and fits(offer, context)
    ]
    priced = [(offer.prediction.peak, offer) for offer in offers if offer.prediction is not None]
    if priced and not lines:
        _, least = min(priced, key=lambda pair: pair[0])
        assert least.prediction is not None
        lines.append(
            f"nothing that needs consent would fit alone either: nearest is --allow {least.name}, predicted "
            f"{expected(least.prediction)} of {usable} ({title_of(least.candidate)})"
        )
    missing: dict[str, list[str]] = {}
    for offer in offers:
        if offer.prediction is None:
            missing.setdefault(offer.reason, []).append(offer.name)
    lines += [f"not priced: --allow {', '.join(names)} ({why})" for why, names in missing.items()]
    return tuple(lines)


def _how(offer: Offer) -> str:
    return next((one.change.how for one in BY_CONSENT if one.name == offer.name), "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"
