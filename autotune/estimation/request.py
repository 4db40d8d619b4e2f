"""Estimates for a model on GPUs that need not be there: resolve, trace in workers, price."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from autotune.accumulation import ASSUMED_STEPS
from autotune.bounds import too_many_ranks
from autotune.candidate import AXES, Candidate, choices
from autotune.devices.hardware import Hardware, find_hardware
from autotune.devices.simulated import SimulatedDevice
from autotune.errors import InputError, Problem
from autotune.estimation.pricing import Estimate, Unpriced, price
from autotune.executors.scratch import scratch_folder, temporary
from autotune.lengths import Lengths, read_lengths
from autotune.models.resolve import resolve
from autotune.models.sequence_length import LONGEST_DEFAULT, sequence_length
from autotune.notebook import html_table
from autotune.options import EstimateOptions
from autotune.probe.protocol import ProbeRequest
from autotune.search.shipped import default_space, load_space
from autotune.search.space import Space
from autotune.specs import ModelSpec
from autotune.techniques.axis import Context
from autotune.techniques.check import axis_of, refusals
from autotune.techniques.families import title as title_of
from autotune.techniques.sharding import usual_sharding
from autotune.timeline.timeline import Timeline
from autotune.timing.machine import Machine
from autotune.timing.roofline import step_time
from autotune.tracing.client import Trace, Tracer
from autotune.units import format_bytes

TIMEOUT = 900.0
"""Seconds for all traces of one worker."""


class EstimateRequest(EstimateOptions):
    """What an estimate is asked: its options, and the axes of a candidate."""

    candidate: dict[str, Any] = Field(default_factory=dict)
    """The axes of one candidate; without any, every rung of the space is estimated."""

    @property
    def world_size(self) -> int:
        """GPUs that train together, on all nodes."""
        return self.gpus * self.nodes

    @property
    def devices(self) -> str:
        """How many GPUs there are, before the name of one: `2 x 8 x ` are two nodes of eight; empty for one."""
        return "".join(f"{count} x " for count in (self.nodes, self.gpus) if count > 1)

    def steps_of(self, candidate: Candidate) -> int:
        """Return the micro-steps of a candidate's global step: those asked for, else ASSUMED_STEPS.

        An optimizer step inside the backward pass leaves no gradients to accumulate: there it is a single one.
        """
        return self.accumulation_steps or (1 if candidate.optimizer_in_backward else ASSUMED_STEPS)

    @classmethod
    def gather(cls, given: dict[str, Any], base: Path, flags: Container[str] = ()) -> EstimateRequest:
        """Sort options into axes of a candidate, with the short names that their values have, and the rest.

        Raises InputError with every mistake that can be seen, also in what only `settle` looks at; `flags` are the
        options that a command line gave.
        """
        rest = {name: value for name, value in given.items() if name not in AXES}
        axes = {**rest.pop("candidate", {}), **{name: value for name, value in given.items() if name in AXES}}
        axes = {name: axis_of(name).named(value) if name in AXES else value for name, value in axes.items()}
        if "micro_batch" in axes:  # a field of a candidate, and an option of its own
            rest["micro_batch"] = axes.pop("micro_batch")
        return cls.load_with(
            {**rest, "candidate": axes}, "options", lambda question: settle(question, base, flags), flags
        )


@dataclass(frozen=True)
class PricedTrace:
    """An estimate, with the trace that it was read from."""

    estimate: Estimate
    timeline: Timeline


@dataclass(frozen=True)
class EstimateReport:
    """Everything that `autotune estimate` found."""

    question: EstimateRequest
    model: ModelSpec
    hardware: Hardware
    seq_len: int
    rungs: tuple[PricedTrace | Unpriced, ...]

    @property
    def priced(self) -> tuple[PricedTrace, ...]:
        """The rungs that could be traced."""
        return tuple(rung for rung in self.rungs if isinstance(rung, PricedTrace))

    @property
    def unpriced(self) -> tuple[Unpriced, ...]:
        """The rungs that could not be traced, with the reason."""
        return tuple(rung for rung in self.rungs if isinstance(rung, Unpriced))

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it: a row for each rung."""
        rows = [
            (
                title_of(rung.estimate.candidate), f"{rung.estimate.micro_batch:,}",
                format_bytes(rung.estimate.device_peak_bytes), "fits" if rung.estimate.fits else "does not fit",
                str(rung.estimate.largest_micro_batch or "none fits"),
            )
            for rung in self.priced
        ]  # fmt: skip
        rows += [
            (title_of(rung.candidate), "-", "-", f"cannot be predicted: {rung.reason}", "-")
            for rung in self.unpriced
        ]
        head = ("configuration", "micro-batch", "peak", "verdict", "largest micro-batch")
        return html_table(head, rows, f"{self.model.name} on {self.hardware.id}: predicted, not measured")


class ResolvedRequest(NamedTuple):
    """What the names in a question stand for."""

    model: ModelSpec
    hardware: Hardware
    seq_len: int
    space: Space
    chosen: Candidate
    lengths: Lengths | None
    """Of the sequences, as far as the sequence length lets them."""


def estimate(question: EstimateRequest, tracer: Tracer, base: Path) -> EstimateReport:
    """Return the estimates that are asked for. Relative paths start at `base`.

    Raises InputError with every mistake of the question, or where a worker finds that the model cannot be built.
    """
    model, hardware, seq_len, space, chosen, lengths = settle(question, base)
    candidates = _candidates(question, space, chosen, hardware)
    traces = _trace(_request(question, model, seq_len, lengths, candidates[0]), candidates, tracer)
    rungs = tuple(
        _price(candidate, traces[candidate], question, hardware, lengths) for candidate in candidates
    )
    return EstimateReport(question, model, hardware, seq_len, rungs)


def settle(question: EstimateRequest, base: Path, flags: Container[str] = ()) -> ResolvedRequest:
    """Look up what a question names. Raises InputError with every mistake but a combination that is refused."""
    problems: list[str] = []

    def attempt(option: str, make: Any) -> Any:
        try:
            return make()
        except InputError as error:
            problems.extend(Problem(problem, option) for problem in error.problems)
        except ValueError as error:
            problems.append(Problem(str(error), option))
        return None

    model = attempt(
        "model",
        lambda: resolve(
            question.model, block_class=question.block_class, trust_remote_code=question.trust_remote_code,
            base=base,
        ).model_copy(update={"train": question.train})
    )  # fmt: skip
    hardware = attempt("gpu", lambda: find_hardware(question.gpu))
    # Of one device, whatever there are: the table has every sharding of each rung.
    named = question.space or default_space(1, question.lengths is not None)
    space = attempt("space", lambda: load_space(named))
    chosen = attempt("candidate", lambda: Candidate.load(question.candidate, "options", flags))
    lengths = attempt("lengths", lambda: read_lengths(question.lengths, base))
    longest = lengths.longest if lengths else LONGEST_DEFAULT
    seq_len = attempt("seq_len", lambda: sequence_length(question.seq_len, model, longest)) if model else None
    if reason := too_many_ranks(question.gpus, question.nodes):
        problems.append(Problem(reason, "gpus"))
    if problems or seq_len is None:
        raise InputError(problems)
    return ResolvedRequest(model, hardware, seq_len, space, chosen, lengths and lengths.within(seq_len))


def _candidates(
    question: EstimateRequest, space: Space, chosen: Candidate, hardware: Hardware
) -> tuple[Candidate, ...]:
    """Return the one candidate that was asked for, or every rung. Raises InputError for an illegal one."""
    ranks, facts = question.world_size, SimulatedDevice(hardware).facts()

    def problems(candidate: Candidate) -> list[Problem]:
        context = Context(
            accumulation_steps=question.steps_of(candidate), world_size=ranks, nodes=question.nodes, device=facts,
            with_lengths=question.lengths is not None,
        )  # fmt: skip
        about = {reason: "space"} if (reason := space.refusal(candidate)) else {}
        about |= {one.reason: one.axis or "" for one in refusals(candidate, context)}
        return [Problem(reason, axis) for reason, axis in about.items()]

    if question.lengths is not None and "sequences" not in question.candidate:
        chosen = chosen.model_copy(update={"sequences": "padded"})
    if question.candidate:
        if ranks > 1 and "sharding" not in question.candidate:
            usual = usual_sharding(ranks, chosen.tensor_parallel)
            chosen = chosen.model_copy(update={"sharding": usual})
        if found := problems(chosen):
            raise InputError(found)
        return (chosen.at(question.micro_batch),)
    half = "fp16" if hardware.fp16_tflops is not None else "fp32"
    base = chosen.model_copy(update={"precision": "bf16" if facts.supports("bf16") else half})
    shardings = [name for name in choices("sharding") if (name == "none") == (ranks == 1)]
    rungs = dict.fromkeys(
        rung.model_copy(update={"sharding": sharding, "micro_batch": question.micro_batch})
        for sharding in shardings
        for rung in space.rungs(base)
    )
    allowed = tuple(rung for rung in rungs if not problems(rung))
    if not allowed:
        raise InputError(dict.fromkeys(reason for rung in rungs for reason in problems(rung)))
    return allowed


def _request(
    question: EstimateRequest, model: ModelSpec, seq_len: int, lengths: Lengths | None, candidate: Candidate
) -> ProbeRequest:
    return ProbeRequest(
        kind="trace", model=model, candidate=candidate, seq_len=seq_len, lengths=lengths,
        accumulation_steps=question.accumulation_steps or 1,  # a trace is the same for any
        device="cuda:0",
        world_size=question.world_size, nodes=question.nodes, budget=0, seed=0, sample_seconds=1.0,
        sample_steps=2, folder="",
        evaluation=bool(question.candidate),  # for one candidate; a table of all rungs is there for their training
    )  # fmt: skip


def _trace(request: ProbeRequest, candidates: Sequence[Candidate], tracer: Tracer) -> dict[Candidate, Trace]:
    first, *rest = candidates
    wanted = request.model_copy(update={"candidate": first, "also": tuple(rest)})
    with scratch_folder([temporary()]) as folder:
        return tracer.trace(wanted, folder, timeout=TIMEOUT)


def _price(
    candidate: Candidate, trace: Trace, question: EstimateRequest, hardware: Hardware, lengths: Lengths | None
) -> PricedTrace | Unpriced:
    timeline = trace.timeline
    if timeline is None:
        return Unpriced(candidate=candidate, reason=trace.reason)
    machine = Machine.of(hardware)
    tokens = int(timeline.facts["tokens_per_sample"])
    if lengths is not None:  # padding is not counted
        tokens = lengths.tokens_per_row(candidate.sequences, int(timeline.facts["seq_len"]))
    steps = question.steps_of(candidate)

    def speed(micro_batch: int) -> Any:
        step = step_time(timeline, micro_batch, machine, steps > 1)
        return None if step is None else step.timing()

    made = price(
        candidate, timeline, hardware, usable=int(hardware.usable_bytes() * (1 - question.headroom)),
        gpus=question.world_size, accumulation_steps=steps, speed=speed,
        tokens_per_micro_batch=lambda micro_batch: micro_batch * tokens * candidate.data_ranks(question.world_size),
        cached=trace.cached,
    )  # fmt: skip
    return PricedTrace(made, timeline)
