"""One model, built once, under which the passes of many candidates are traced one after the other.

Candidates of a ladder share parameters and where these lie; building a model, and sharding it above all, takes as long
as tracing a few of its blocks. What differs is taken off the model and put on anew (`shared_model.SharedModel`). Only
passes are traced so, whose optimizer another trace tells: no parameter ever changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from autotune.candidate import ON_ONE_MODEL, Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.worker.build.shared_model import SharedModel
from autotune.worker.tracing.fake_training import FakeTraining, prepare_ranks, stage
from autotune.worker.tracing.shortening import Shortening

_ALL = frozenset({-1})
"""Stands for all blocks."""


class _Built:
    """A model on its stage."""

    def __init__(self, request: ProbeRequest, stack: ExitStack) -> None:
        self.recorder, there = stack.enter_context(stage(request, alone=True))
        with self.recorder.segment() as self.building:
            self.recorder.mark("build")
            self.model = SharedModel(there)
            self.first = self.model.training(request.candidate)
            self.recorder.label(self.first.model.parameters(), "parameter")
            self.recorder.label(self.first.model.buffers(), "buffer")
        stack.callback(self.model.close)
        stack.enter_context(self.recorder.watching(self.first.model))
        self.prepared: frozenset[int] = frozenset()
        """The numbers of the blocks that are ready for passes; none before the first."""

    def with_passes_of(self, request: ProbeRequest, why_all: str) -> tuple[FakeTraining, frozenset[int]]:
        """Return the training of the request's candidate, and the blocks that its passes run through."""
        training = self.model.training(request.candidate)
        short = None if why_all else Shortening.of(training, request)
        fake = FakeTraining(self.recorder, training, self.building, short, why_all)
        return fake, _ALL if short is None else short.longest


class SharedTrainings:
    """Keeps the model that was built last."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._key: ProbeRequest | None = None
        self._built: _Built | None = None

    @contextmanager
    def fake_training(self, request: ProbeRequest, why_all: str) -> Iterator[FakeTraining]:
        """Return the training of the request's candidate, ready for its passes.

        With `why_all` they run through all blocks. What goes wrong ends the stage.
        """
        try:
            yield self._ready(request, why_all)
            if request.candidate.compile != "none":
                from autotune.worker.tracing.fakes.compiler import check_undivided

                check_undivided()
        except BaseException:
            stack, self._stack, self._built, self._key = self._stack, ExitStack(), None, None
            if not stack.__exit__(*sys.exc_info()):
                raise

    def _ready(self, request: ProbeRequest, why_all: str) -> FakeTraining:
        built = self._of(request)
        fake, blocks = built.with_passes_of(request, why_all)
        if built.prepared and not (blocks <= built.prepared or built.prepared >= _ALL):
            # Blocks prepared after others would find what those have left, and no longer be like them.
            self.close()
            built = self._of(request)
            fake, blocks = built.with_passes_of(request, why_all)
        if not built.prepared:
            built.prepared = blocks if prepare_ranks(request, fake) else _ALL
        return fake

    def _of(self, request: ProbeRequest) -> _Built:
        plain = {name: Candidate.model_fields[name].default for name in ON_ONE_MODEL}
        key = request.alone(request.candidate.model_copy(update=plain))
        if self._built is None or key != self._key:
            self.close()
            self._built, self._key = _Built(request, self._stack), key
        return self._built

    def close(self) -> None:
        """Let go of the model, and of its stage."""
        stack, self._stack, self._built, self._key = self._stack, ExitStack(), None, None
        stack.close()


_KEPT: list[SharedTrainings] = []


@contextmanager
def shared_trainings() -> Iterator[None]:
    """Let traces within share models, in a process that does nothing else."""
    _KEPT.append(SharedTrainings())
    try:
        yield
    finally:
        _KEPT.pop().close()


def sharing(request: ProbeRequest) -> SharedTrainings | None:
    """Return what keeps models for traces of passes; None where nothing is to be shared."""
    if not _KEPT or request.model.source == "function" or request.candidate.engine != "torch":
        return None
    return _KEPT[-1]


def close_shared_models() -> None:
    """Let go of a model that is kept, before another stage is set."""
    for kept in _KEPT:
        kept.close()


def does_nothing_but_trace() -> bool:
    """Tell whether this process only traces."""
    return bool(_KEPT)
