"""What a probe came to: a closed set of typed verdicts, and the measurements that a good one carries."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from autotune.bounds import Amount, Bytes, Duration
from autotune.racing import SpeedBound
from autotune.validation import Frozen

Phase = Literal["start", "build", "forward", "backward", "optimizer", "evaluation", "save"]
"""Where in a probe something happened. `start` is everything before the model is built."""


class Sample(Frozen):
    """A repeated measurement: mean and half-width of its 95% confidence interval, in seconds; of energy in joules."""

    mean: Duration
    half_width: Duration | None
    """None where fewer than two repetitions were taken: then there is no interval."""
    count: Amount


class StepParts(Frozen):
    """The parts of a global step, measured apart so that any number of accumulation steps can be composed."""

    micro_step: Sample
    """Forward and backward of one micro-batch without gradient synchronization."""
    last_micro_step: Sample
    """Forward and backward of the last micro-batch of a global step, with gradient synchronization."""
    optimizer_step: Sample
    """Optimizer step and clearing of the gradients."""

    def global_step(self, accumulation_steps: int) -> float:
        """Return the seconds (or joules) of a whole global step of `accumulation_steps` micro-steps."""
        return (
            (accumulation_steps - 1) * self.micro_step.mean
            + self.last_micro_step.mean
            + self.optimizer_step.mean
        )

    def interval(self, accumulation_steps: int) -> float:
        """Return the half-width (seconds or joules) of the global step's 95% interval.

        Micro-steps of one run share their systematic error, so the parts' intervals are added, not averaged.
        """
        return (
            (accumulation_steps - 1) * (self.micro_step.half_width or 0.0)
            + (self.last_micro_step.half_width or 0.0)
            + (self.optimizer_step.half_width or 0.0)
        )


class StepTiming(StepParts):
    """The seconds of the parts of a global step."""

    data_wait: Sample | None = None
    """Of each micro-step, and counted in its time: until its batch was there. None where predicted, or not recorded."""

    @field_validator("last_micro_step")
    @classmethod
    def _takes_time(cls, value: Sample) -> Sample:
        if value.mean <= 0:
            raise ValueError("a micro-step takes time")
        return value


EnergyCounter = Literal["nvml", "rapl"]
"""What counts joules: an NVIDIA GPU, through NVML, or the packages of a machine's processors, through Linux's
powercap (RAPL: their cores, caches and, on most, memory controllers; of all that runs there)."""


class StepEnergy(StepParts):
    """The joules of the parts of a global step, of all devices together."""

    counter: EnergyCounter


ChosenBy = Literal["speed", "finals", "prediction", "memory", "energy", "proof"]
"""What made one of several the winner: what the objective compares (speed, memory or energy), or, where that does not
tell them apart, the smaller time in the finals, the smaller predicted time, the smaller peak, the smaller measured
time, or a proof that held."""


class Drift(Frozen):
    """By how much two measurements of one candidate differ, beyond what the steps within each show."""

    share: Annotated[float, Field(ge=0)]
    """Half-width of the 95% interval that this adds to each measured time, as a share of it."""
    floor: Annotated[float, Field(ge=0)]
    """What is assumed at the least, from a quiet machine."""
    halves: Annotated[int, Field(ge=0)]
    """Measurements whose first half was compared with their second."""
    repeats: Annotated[int, Field(ge=0)]
    """Rematches and proofs that were compared with the probe that they repeat."""


class Communication(Frozen):
    """Seconds in which at least one collective was under way, in each part of a global step, on one rank.

    What is computed meanwhile is not taken off. Where the last micro-step is the only one, it stands for the others.
    """

    micro_step: Duration
    """Of a micro-step that is not the last."""
    last_micro_step: Duration
    optimizer_step: Duration

    def global_step(self, accumulation_steps: int) -> float:
        """Return the seconds of a whole global step of `accumulation_steps` micro-steps."""
        return (accumulation_steps - 1) * self.micro_step + self.last_micro_step + self.optimizer_step


class Breakdown(Frozen):
    """Tensor bytes on the device at the peak of a step, by what they hold."""

    parameters: Bytes
    gradients: Bytes
    optimizer_state: Bytes
    activations: Bytes
    """Alive at the end of forward beyond the three above: what backward needs."""
    other: Bytes
    """The rest of the peak: temporaries, workspaces, buffers."""


class Memory(Frozen):
    """The four numbers of memory, never mixed, in bytes."""

    allocated: Bytes
    """Peak of tensor bytes (CUDA: max_memory_allocated; cpu: anonymous memory beyond the interpreter's own)."""
    reserved: Bytes
    """Peak that the allocator held (CUDA: max_memory_reserved; cpu: private data that RLIMIT_DATA counts)."""
    device_peak: Bytes
    """Peak of the whole process on the device (CUDA: NVML; cpu: anonymous memory, interpreter included)."""
    budget: Annotated[Bytes, Field(gt=0)]
    """What the device grants: usable memory of the GPU, or the enforced limit of the cpu device."""
    baseline: Bytes
    """What was taken before the model was built: interpreter and libraries, or the CUDA context."""
    allocator_retries: Annotated[int, Field(ge=0)] = 0
    """Times the CUDA allocator had to flush its cache to satisfy a request; 0 elsewhere."""
    breakdown: Breakdown
    by_rank: tuple[Bytes, ...] = ()
    """The peak of each rank of several that trained together; the other numbers are the fullest one's."""

    def free(self) -> int:
        """Return the bytes of the budget that the peak left untouched (at least 0)."""
        return max(0, self.budget - self.peak())

    def peak(self) -> int:
        """Return what counts against the budget: the largest of the process's peak and what it reserved."""
        return max(self.device_peak, self.reserved)


class PhaseReport(Frozen):
    """Time and memory of one phase of the last measured step (of the only pass, for build and evaluation)."""

    phase: Phase
    seconds: Duration
    peak: Bytes
    """Peak tensor bytes during the phase."""
    end: Bytes
    """Tensor bytes alive when the phase ended."""


StressName = Literal["shuffled lengths", "loaded experts"]


class Stress(Frozen):
    """Steps of a proof that load memory as training does later, and as the steps of a probe do not."""

    name: StressName
    """`shuffled lengths`: rows of every length, the longest between them. `loaded experts`: all tokens of a mixture of
    experts on the same ones, where random weights do not send them."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps that were trained so; 0 where it was left out."""
    peak: Bytes | None = None
    """Most that the process took of the device meanwhile (see `Memory.peak`); null where it was left out."""
    skipped: str = ""
    """Why it was left out; empty where it was not."""


AttentionKernel = Literal["flash", "memory-efficient", "cuDNN", "math"]
"""What torch's scaled dot-product attention chooses from; `flash` is also a processor's kernel of that kind."""


class Ok(Frozen):
    """The probe trained: at least two optimizer steps, all losses finite, memory within the budget."""

    kind: Literal["ok"] = "ok"
    memory: Memory
    timing: StepTiming | None = None
    """None where the probe ended before its speed was known, because it could not win."""
    bound: SpeedBound | None = None
    """What is known of its speed then; None where that was measured."""
    step_seconds: tuple[float, ...] = ()
    """Of each optimizer step that was measured, with its micro-steps, in order; of the slowest rank."""
    energy: StepEnergy | None = None
    """What the measured steps took of the counters of all devices; None where the objective does not ask for it."""
    communication: Communication | None = None
    """Of the rank that waited least for others, in a step of its own; None on one rank, and where the backend does not
    tell."""
    phases: tuple[PhaseReport, ...]
    losses: tuple[float, ...]
    """Training loss of every optimizer step, in order (mean over its micro-steps); of a long proof an even choice, the
    first and the last among them."""
    optimizer_steps: int | None = None
    """Optimizer steps of a proof before its stresses; None where every one has its loss above."""
    accumulation_steps: int
    """Micro-steps that the probe ran for each optimizer step: in a proof all of a global step, or as many as fit."""
    plain_peak: Bytes | None = None
    """Most that the process of a proof took of the device before its stresses, with the longest rows."""
    stresses: tuple[Stress, ...] = ()
    """What a proof trained beyond that; `memory` has their peaks in `reserved` and `device_peak`."""
    attention: str | None = None
    """The attention implementation that ran, as the model reports it."""
    attention_kernels: tuple[AttentionKernel, ...] = ()
    """Which kernels torch's scaled dot-product attention chose, in the first step; on a simulated device those that its
    trace assumes. Empty where it was not called, and where compiled blocks hide it."""
    loader_bytes: Bytes | None = None
    """Host memory of the loader's worker processes and of batches in advance; None without a dataset of the user's."""
    skipped_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps that loss scaling (fp16) left out, because a gradient was infinite or NaN."""
    evaluation_loss: Annotated[float, Field(allow_inf_nan=True)] | None = None
    """Loss of the evaluation pass; only a proof has one."""
    evaluation_micro_batch: int | None = None
    """A micro-batch at which evaluation was run and fits, at least the training's; only a proof has one."""
    checkpoint_bytes: int | None = None
    """Size of the saved checkpoint; only a proof has one."""

    @model_validator(mode="after")
    def _says_one_thing_of_speed(self) -> Self:
        if (self.timing is None) == (self.bound is None):
            raise ValueError("a probe either measured its speed or has a bound of it")
        return self

    def measured_seconds(self) -> float:
        """Return how long the steps took, all together, from which `timing` was told; 0.0 where there is none."""
        if self.timing is None:
            return 0.0
        return self.timing.optimizer_step.count * self.timing.global_step(self.accumulation_steps)


class Oom(Frozen):
    """A real allocation was refused (or the kernel killed the probe for memory)."""

    kind: Literal["oom"] = "oom"
    where: Literal["device", "host", "disk"] = "device"
    phase: Phase
    requested: int | None = None
    """Bytes of the refused request, where the allocator said so."""
    free: int | None = None
    """Bytes that were free at that moment."""
    message: str = ""
    rank: int | None = None
    """Which of several ranks it was."""
    stress: StressName | None = None
    """What a proof loaded memory with when it was refused; None for steps as a probe has them."""


class NonFinite(Frozen):
    """A loss or a gradient norm was NaN or infinite; or, under loss scaling, gradients were at every scale."""

    kind: Literal["non_finite"] = "non_finite"
    phase: Phase
    step: int
    """Optimizer step at which it was seen, from 1."""
    what: Literal["loss", "gradient", "scale"]


class Timeout(Frozen):
    """The probe did not end within its deadline and was killed."""

    kind: Literal["timeout"] = "timeout"
    phase: Phase
    seconds: float
    message: str = ""
    """What is known of why; empty where nothing is."""


class Crash(Frozen):
    """The probe ended without a verdict about memory."""

    kind: Literal["crash"] = "crash"
    reason: Literal["exception", "signal", "exit", "protocol", "command"]
    """Python exception (SystemExit is one); killed by a signal for a fault of its own; ended without a verdict; broke
    the protocol; a user's command that did something else than it was asked."""
    phase: Phase
    message: str
    traceback: str = ""


class Lost(Frozen):
    """Something outside ended the probe, each time that it was tried: what it would have come to is unknown.

    It speaks neither for a candidate nor against it, and no decision about memory or speed follows from it.
    """

    kind: Literal["lost"] = "lost"
    cause: Literal["tuner", "supervisor", "worker", "node", "scheduler"]
    """What was ended from outside: the tuner with all below it, the supervisor, the worker alone, or on a cluster the
    node that it ran on; or it was the scheduler that ended its job, told to by somebody or to make room."""
    phase: Phase
    message: str


Cause = Literal["axes", "space", "context", "device", "package", "compiler", "room"]
"""What is in the way of a candidate: other axes of it, a constraint of the search space, the ranks, model or data that
it is for, what the device computes, a package or a compiler that is not there, or host memory or disk."""


class Unsupported(Frozen):
    """This machine or this model cannot run the candidate at all; refused before or at its start."""

    kind: Literal["unsupported"] = "unsupported"
    reason: str
    """The sentence, with what to do instead; several where several things are in the way."""
    axis: str | None = None
    """The field of the candidate whose value is refused (the first of several); None where it is no single one's."""
    cause: Cause | None = None
    """What is in the way of that; None where the reason is no candidate's (the model, the input, a trace)."""


Outcome = Annotated[Ok | Oom | NonFinite | Timeout | Crash | Lost | Unsupported, Field(discriminator="kind")]

OUTCOMES: dict[str, type[Frozen]] = {
    "ok": Ok, "oom": Oom, "non_finite": NonFinite, "timeout": Timeout, "crash": Crash,
    "lost": Lost, "unsupported": Unsupported,
}  # fmt: skip
"""Every verdict by the name that files and graphs use."""
