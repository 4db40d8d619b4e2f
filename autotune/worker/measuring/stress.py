"""What training meets later and the steps of a probe do not: rows of every length, and experts that all tokens take.

Memory of a caching allocator falls to pieces when sizes change: a block that a short row took is too small for a long
one, and what is left of a large block is lost to it; and a processor keeps kernels for each shape. So lengths are drawn
anew for every micro-step, with the longest between them. And random weights spread tokens evenly over experts, which
trained ones do not: so all tokens take the same experts, in every layer.

Both run on all ranks alike, with the same lengths. Their losses and times are of nothing that is recorded.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autotune.outcome import Stress, StressName
from autotune.probe.protocol import ProbeRequest
from autotune.worker.configuration import experts_of
from autotune.worker.measuring.steps import MICRO_STEPS, Stepper
from autotune.worker.measuring.verdict import Circumstances, verdict
from autotune.worker.training import Batch, Training

TIME_SHARE = 0.2
"""Share of a proof's time that each of the two takes."""
LEAST = 4
"""Micro-steps of each, at least, so that the longest rows come up."""
LONGEST_EVERY = 4
"""One micro-step in so many has the longest rows: they ask for the large blocks that shorter ones have cut up."""
SHORTEST_SHARE = 8
"""The shortest rows have an eighth of the longest ones' tokens."""
ALIGNED = 16
"""fp8 multiplies matrices whose sides are multiples of this."""


def stresses(request: ProbeRequest, training: Training) -> tuple[tuple[StressName, str], ...]:
    """Return what there is to try of a training, each with why it is left out (empty where it is not)."""
    found: list[tuple[StressName, str]] = [("shuffled lengths", training.of_one_length)]
    chosen, _ = experts_of(getattr(training.model, "config", None))
    if chosen:
        lacking = ""
        if request.candidate.compile != "none":
            lacking = "compiled blocks do not ask which experts to take"
        elif not _experts(training.model):
            lacking = "its experts are in no module that is told which to take"
        found.append(("loaded experts", lacking))
    return tuple(found)


def run(name: StressName, request: ProbeRequest, stepper: Stepper, deadline: float) -> Stress:
    """Train so until the deadline (of `time.perf_counter`), for a few steps at least, and return what it took.

    Raises what training raises when memory or numbers fail it. A model that cannot take shorter rows is no failure.
    """
    phases, training = stepper.phases, stepper.training
    phases.stress = name
    phases.meter.section()
    micro_steps = min(request.accumulation_steps, MICRO_STEPS)
    steps, skipped = 0, ""
    try:
        if name == "loaded experts":
            steps, calls = _loaded(stepper, micro_steps, deadline)
            skipped = "" if calls else "its experts are not told which to take"
        else:
            steps = _shuffled(request, stepper, micro_steps, deadline)
    except _NoShorter as error:
        phases.pause()
        training.optimizer.zero_grad()
        skipped = str(error)
    finally:
        stepper.draw = None
        stepper.heaviest = False
    phases.stress = None  # but not where memory was refused: the verdict names it
    if skipped:
        return Stress(name=name, skipped=skipped)
    return Stress(name=name, steps=steps, peak=phases.meter.section())


class _NoShorter(Exception):
    """The model, or what makes its batches, knows rows of one length alone."""


def _until(stepper: Stepper, micro_steps: int, deadline: float) -> int:
    steps = 0
    while steps * micro_steps < LEAST or not stepper.training.ranks.largest(time.perf_counter() >= deadline):
        stepper.step(micro_steps)
        steps += 1
    return steps


def _shuffled(request: ProbeRequest, stepper: Stepper, micro_steps: int, deadline: float) -> int:
    training = stepper.training
    if training.loader is not None:
        stepper.draw = _alternating(stepper)
        return _until(stepper, micro_steps, deadline)
    multiple = ALIGNED if request.candidate.precision == "fp8" else 1
    lengths = shuffled(request.seq_len, request.seed, multiple)
    shorter = training.shorter
    assert shorter is not None, "asked for only where there is one"
    tokens = 0

    def draw() -> Batch:
        nonlocal tokens
        tokens = next(lengths)
        return shorter(stepper.next_batch(), stepper.micro_batch, tokens)

    stepper.draw = draw
    try:
        return _until(stepper, micro_steps, deadline)
    except Exception as error:
        at = Circumstances(  # what may mean memory is left to the worker, which knows how much is free
            phase=stepper.phases.phase, step=stepper.phases.step, free=None, short=True,
            device="cuda" if training.device.type == "cuda" else "cpu",
        )  # fmt: skip
        if verdict(error, at).kind not in {"crash", "unsupported"}:
            raise
        first = str(error).strip().partition("\n")[0]
        raise _NoShorter(f"rows of {tokens} tokens fail: {type(error).__name__}: {first}") from error


def shuffled(longest: int, seed: int, multiple: int = 1) -> Iterator[int]:
    """Yield lengths of a `multiple` up to the longest, drawn evenly without end; every fourth is the longest itself."""
    drawn = random.Random(seed)
    least = min(longest, max(2, longest // SHORTEST_SHARE))
    while True:
        for _ in range(LONGEST_EVERY - 1):
            yield min(longest, -(-drawn.randint(least, longest) // multiple) * multiple)
        yield longest


def _alternating(stepper: Stepper) -> Callable[[], Batch]:
    """Return batches of a user's dataset in its own order, with the largest between them."""
    training, count = stepper.training, 0
    assert training.loader is not None
    loader = training.loader

    def draw() -> Batch:
        nonlocal count
        count += 1
        if count % LONGEST_EVERY == 0:
            return loader.heaviest(stepper.micro_batch)
        return training.batch(stepper.next_batch(), stepper.micro_batch)

    return draw


def _loaded(stepper: Stepper, micro_steps: int, deadline: float) -> tuple[int, int]:
    """Return optimizer steps, and how often experts were told which of them to take."""
    stepper.heaviest = stepper.training.loader is not None
    with all_on_the_same(stepper.training.model) as calls:
        return _until(stepper, micro_steps, deadline), calls[0]


@contextmanager
def all_on_the_same(model: nn.Module) -> Iterator[list[int]]:
    """While open, all tokens take the first experts of each layer, whatever its router says; yields a count of calls.

    transformers tells the module of a layer's experts which of them each token takes, by an integer tensor of (tokens,
    experts for each). That is replaced; routers and weights stay as they are.
    """
    calls = [0]

    def told(value: object) -> object:
        if isinstance(value, Tensor) and value.dtype in {torch.int64, torch.int32} and value.dim() == 2:
            calls[0] += 1
            first = torch.arange(value.shape[1], device=value.device, dtype=value.dtype)
            return first.expand(value.shape).contiguous()
        return value

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(told, args)), {name: told(value) for name, value in kwargs.items()}

    handles = [module.register_forward_pre_hook(before, with_kwargs=True) for module in _experts(model)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _experts(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold all experts of a layer, as transformers names them."""
    return [
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "experts" and isinstance(getattr(module, "num_experts", None), int)
    ]
