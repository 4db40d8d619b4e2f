"""One model for the traces of many candidates, which differ in how its passes run."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Any

from autotune.candidate import Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.worker.build.assembly import drafted, training_of
from autotune.worker.build.composition import PASSES, TECHNIQUES, check
from autotune.worker.training import Training

_NOTHING = object()
"""What a module holds under a name that it does not know."""


class SharedModel:
    """A model with its parameters in place, whose passes run as one candidate after the other has them.

    For traces, which ask of many candidates what their passes do. These differ in what `PASSES` apply, and in no more.
    """

    def __init__(self, request: ProbeRequest) -> None:
        """Build the model of the request's candidate. Raises as `assemble`."""
        self._draft = drafted(request, [apply for apply in TECHNIQUES if apply not in PASSES])
        self._closing = self._draft.closing
        self._found: list[tuple[dict[str, Any], str, Any]] = []
        """What was found in modules before passes changed it."""

    def training(self, candidate: Candidate) -> Training:
        """Return the training with the passes of a candidate; that of another one is of no use from now on.

        Raises CannotRun where they cannot run.
        """
        draft = self._draft
        self._take_off()
        draft.request = draft.request.alone(candidate)
        draft.closing = ExitStack()
        own = [vars(module) for module in draft.built.model.modules()]
        before = [dict(values) for values in own]
        try:
            for apply in (check, *PASSES):
                apply(draft)
        finally:
            self._found = [
                (values, name, found.get(name, _NOTHING))
                for values, found in zip(own, before, strict=True)
                for name in (*values, *(name for name in found if name not in values))
                if values.get(name, _NOTHING) is not found.get(name, _NOTHING)
            ]
        return training_of(draft)

    def _take_off(self) -> None:
        for values, name, found in self._found:
            if found is _NOTHING:
                values.pop(name, None)
            else:
                values[name] = found
        self._found = []
        if self._draft.closing is not self._closing:
            self._draft.closing.close()
        self._draft.closing, self._draft.saving = self._closing, nullcontext

    def close(self) -> None:
        """Release what outlives the tensors."""
        self._take_off()
        self._closing.close()
