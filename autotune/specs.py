"""What the user asked for: model, device and goal, together one `RunSpec`; and what a model turned out to be."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from autotune.bounds import BatchAmount, Bytes, Headroom, RankCount, Seed, SeqLen
from autotune.candidate import DeviceKind, Optimizer, Precision
from autotune.cluster import ClusterTarget
from autotune.lengths import Lengths
from autotune.objective import Objective
from autotune.options import DEFAULT_STRATEGY, HEADROOM, LauncherName, Limits, StrategyName
from autotune.outcome import EnergyCounter
from autotune.printable import quoted
from autotune.training_command import TrainingCommand
from autotune.units import format_count, format_size, parse_bytes, parse_count
from autotune.validation import Frozen

Task = Literal["causal-lm", "masked-lm", "seq2seq-lm", "image-classification", "custom"]


class ModelSpec(Frozen):
    """A model that can be built without weights: a configuration, or a function of the user's own."""

    name: str
    """What the user typed: a preset, a path to a config.json, a hub name, or `module:function`."""
    source: Literal["preset", "config", "hub", "function", "command"]
    config: dict[str, Any] | None = None
    """The transformers configuration (as in config.json, `special_floats.tagged`); None for a function."""
    path: str | None = None
    """Folder to put first on sys.path when importing the user's function."""
    code: str | None = None
    """SHA-256 of the file that defines the user's function, as it was when the run was asked for."""
    block_class: str | None = None
    """Class name of the repeated transformer block; None finds it."""
    trust_remote_code: bool = False
    command: TrainingCommand | None = None
    """How the user's own training starts, where that is what is probed; None for a model that autotune trains."""
    traced_as: ModelSpec | None = None
    """The model that a command trains, where the user names it too: its trace is what is assumed before probes tell."""
    train: tuple[str, ...] = ()
    """Patterns of the names of modules or parameters that train; the others are frozen. None: all train."""


class ModelFacts(Frozen):
    """What a worker found when it built the model (on the meta device where that is possible)."""

    task: Task
    model_class: str
    parameters: int
    trainable_parameters: int
    pinned_parameters: int | None = None
    """The trainable ones as they take pinned memory, whose allocator rounds each tensor up to a power of two. None in
    older records."""
    active_parameters: int
    """Parameters that one token meets: less than `parameters` in a mixture of experts."""
    layers: int
    hidden: int
    """Layers and width as the attention FLOPs count them; 0 where unknown."""
    block_class: str | None
    """The repeated transformer block that checkpointing wraps; None where none was found."""
    blocks: int
    tokens_per_sample: int
    """Tokens that one sample counts for: the sequence length, or an image's patches."""
    precision: Precision | None = None
    """What a user's own command was seen to compute in; None where candidates say it, or it is none of theirs."""
    uncut: str = ""
    """Why tensor parallelism cannot cut the model's matrices; empty where it can, and in older records."""
    divided: dict[str, int] = Field(default_factory=dict)
    """Numbers of the configuration that the ranks of tensor parallelism have to divide, by their names there."""
    skips_layers: bool = False
    """Layers are skipped by chance in training (LayerDrop)."""
    attention: str | None = None
    """What computes attention where `sdpa` is asked for: `eager` in a model that has nothing else, or has none. None
    where the model does not say, and in older records."""
    torch_version: str
    transformers_version: str


Evidence = Literal["measured", "predicted", "replayed"]
"""Where numbers come from: a probe, the memory model and the roofline, or the record of probes made before."""
ABSENT = frozenset({"sim", "replay"})
"""Kinds of devices on which nothing runs, so that nothing is proven."""

_DEVICE = re.compile(r"^(?P<kind>auto|cuda|cpu|sim|replay)(?::(?P<argument>.+))?$")


_INDEX = re.compile(r"[0-9]{1,4}")


class DeviceSpec(Frozen):
    """Which device to tune for.

    `cuda`, `cuda:1`; `cpu:3GiB`, a processor with an enforced memory budget; `sim:h100-80gb`, a GPU that is not there;
    `replay:FILE`, any of them as a recorded grid tells of it.
    """

    kind: Literal["auto", "cuda", "cpu", "sim", "replay"]
    index: Annotated[int, Field(ge=0, le=9999)] = 0
    """Number of the GPU, for `cuda`."""
    budget: int | None = None
    """Bytes granted: required for `cpu`, all of the device's usable memory otherwise."""
    hardware: str | None = None
    """Which GPU to simulate, for `sim`: a name of hardware.yaml."""
    file: str | None = None
    """The recorded grid, for `replay`."""
    because: str = ""
    """Why a GPU is simulated that nobody named; empty where one was asked for."""

    @classmethod
    def parse(cls, text: str) -> DeviceSpec:
        """Parse `auto`, `cuda`, `cuda:1`, `cpu:3GiB`, `sim:h100-80gb` or `replay:FILE`. Raises ValueError."""
        match = _DEVICE.match(text.strip())
        unknown = f"device {quoted(text)} is unknown; write auto, cuda, cuda:1, cpu:3GiB, sim:h100-80gb or replay:FILE"
        if match is None:
            raise ValueError(unknown)
        kind, argument = match["kind"], match["argument"]
        if kind == "cpu":
            if argument is None:
                raise ValueError("the cpu device needs a memory budget; write it like cpu:3GiB")
            return cls(kind="cpu", budget=parse_bytes(argument))
        if kind == "sim":
            if argument is None:
                raise ValueError("a simulated device needs the name of a GPU; write it like sim:h100-80gb")
            return cls(kind="sim", hardware=argument)
        if kind == "replay":
            if argument is None:
                raise ValueError("a replayed device needs its recorded grid; write it like replay:FILE")
            return cls(kind="replay", file=argument)
        if argument is None:
            return cls(kind="cuda" if kind == "cuda" else "auto")
        if kind == "auto" or not _INDEX.fullmatch(argument):
            raise ValueError(unknown)
        return cls(kind="cuda", index=int(argument))

    @property
    def evidence(self) -> Evidence:
        """Where numbers of it come from."""
        return "predicted" if self.kind == "sim" else "replayed" if self.kind == "replay" else "measured"

    def __str__(self) -> str:
        if self.kind == "cpu":
            return f"cpu:{format_size(self.budget or 0)}"
        if self.kind == "sim":
            return f"sim:{self.hardware}"
        if self.kind == "replay":
            return f"replay:{self.file}"
        return f"cuda:{self.index}" if self.kind == "cuda" and self.index else self.kind


_GLOBAL_BATCH = re.compile(r"^(?P<amount>\d\S*?)(?:\s*(?P<unit>token|sample|sequence)s?)?$", re.IGNORECASE)
"""A quantity and its unit, with or without a space between them. No two parts match the same: it takes linear time."""


class DeviceFacts(Frozen):
    """What a device is. Memory in bytes."""

    kind: DeviceKind
    """Whose kernels and rules hold."""
    simulated: bool = False
    """Nothing runs on it: what is said of it is predicted."""
    replayed: bool = False
    """Nothing runs on it now: what is said of it was measured before, and is read from a record."""
    name: str
    """As the vendor calls it."""
    torch_name: str
    """What a worker calls it, under the device's own environment: `cpu` or `cuda:0`."""
    number: Annotated[int, Field(ge=0)] = 0
    """N of the `--device cuda:N` that it was asked for by, among the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    budget: Annotated[int, Field(gt=0)]
    """Bytes that a probe may take: the enforced limit (cpu), or what was free at the start (CUDA)."""
    total: Annotated[int, Field(gt=0)]
    """Bytes of the whole device: the machine's memory (cpu), or the GPU's."""
    driver: str | None = None
    """Version of the driver; None on the cpu."""
    hardware: str | None = None
    """Id in hardware.yaml; None for a device that the table does not know."""
    dtypes: tuple[str, ...] = ()
    """Number types beyond fp32 and fp16 that the device itself computes in: `bf16`, `fp8`."""
    peak_flops: dict[str, float] = Field(default_factory=dict)
    """Dense peak in FLOP/s by precision (`bf16`, `fp32`); empty where unknown, and then there is no MFU."""

    energy_counter: EnergyCounter | None = None
    """What counts the energy that its steps take; None where nothing does."""
    lacks_energy: str = ""
    """Why nothing does; empty where something does."""

    @property
    def evidence(self) -> Evidence:
        """Where numbers of it come from."""
        return "predicted" if self.simulated else "replayed" if self.replayed else "measured"

    def supports(self, dtype: str) -> bool:
        """Tell whether the device itself computes in a number type."""
        return dtype in {"fp32", "fp16", *self.dtypes}


EMULATED = 2.0
"""Beyond what two timings of a tenth of a second on a busy machine differ by; emulation takes tens of times as long."""


class FileSpeed(Frozen):
    """How fast tensors move into files that are mapped into memory."""

    copy_speed: Annotated[float, Field(gt=0)]
    """Bytes/s of a copy into new ones."""
    unwritten: Bytes
    """Bytes of them that the kernel keeps in memory before it makes whoever writes more wait for the disk."""


class DeviceSpeed(Frozen):
    """What a device was measured to reach, in a few operators: for one whose data sheet is not known."""

    matrix_flops: dict[str, Annotated[float, Field(gt=0)]]
    """FLOP/s of large matrix products by number type: `fp32`, `bf16`, `fp16`."""
    attention_flops: dict[str, Annotated[float, Field(gt=0)]]
    """FLOP/s of fused attention, by the same types."""
    elementwise_flops: Annotated[float, Field(gt=0)]
    """Elements/s that an activation function goes through (GELU, fp32), where nothing waits for memory."""
    memory: Annotated[float, Field(gt=0)]
    """Bytes/s of an addition of arrays too large for caches: what it reads, and what it writes."""
    operator: Annotated[float, Field(gt=0)]
    """Seconds of the smallest operator in eager mode: Python, dispatch and launch."""
    random: Annotated[float, Field(gt=0)] | None = None
    """Random numbers/s that torch's generator draws, one for each element of a dropout mask; None where it was not
    measured."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads that operators run on; a generator is no faster on several."""
    files: FileSpeed | None = None
    """Of files that are mapped into memory, to which the cpu device offloads; None where it was not measured."""

    def emulates(self, dtype: str) -> bool:
        """Tell whether matrix products in a number type were measured to take more than `EMULATED` times fp32's.

        So it is where the device has no instructions for it, as processors without AVX512-BF16 and AMX have none
        for bf16.
        """
        return EMULATED * self.matrix_flops.get(dtype, math.inf) < self.matrix_flops.get("fp32", 0.0)


class GlobalBatch(Frozen):
    """The number of tokens (or samples) that one optimizer step must see, over all devices together."""

    amount: BatchAmount
    unit: Literal["tokens", "samples"] = "tokens"

    @classmethod
    def parse(cls, text: str) -> GlobalBatch:
        """Parse `4M`, `64Ki tokens`, `512 samples` or `512samples`. Raises ValueError."""
        if (match := _GLOBAL_BATCH.match(text.strip())) is None:
            raise ValueError(
                f"global batch {quoted(text)} is unknown; write it like 4M, '64Ki tokens' or '512 samples'"
            )
        unit: Literal["tokens", "samples"] = (
            "tokens" if match["unit"] is None or match["unit"].lower() == "token" else "samples"
        )
        return cls.load({"amount": parse_count(match["amount"]), "unit": unit}, "global batch")

    def tokens(self, tokens_per_sample: int) -> int:
        """Return the batch in tokens."""
        return self.amount * (tokens_per_sample if self.unit == "samples" else 1)

    def __str__(self) -> str:
        return f"{format_count(self.amount)} {self.unit}"


class Goal(Frozen):
    """What a configuration is judged by: an objective at this global batch, on so many devices, with room to spare."""

    target: GlobalBatch
    seq_len: SeqLen = 1024
    """Tokens per sequence, or of a row that is padded or packed: the longest is what runs out of memory."""
    lengths: Lengths | None = None
    """How long the dataset's sequences are, none longer than `seq_len`; None where all are as long."""
    gpus: RankCount = 1
    """World size: devices that train together, on all nodes."""
    nodes: RankCount = 1
    """Machines that the devices are in, as many in each."""
    exact: bool = False
    """Refuse a micro-batch whose accumulation does not meet the target exactly."""
    headroom: Headroom = HEADROOM
    """Share of the budget that the winner must leave free."""
    objective: Objective = Objective()
    """What the winner is best in, of what fits so."""

    @field_validator("target", mode="before")
    @classmethod
    def _parse_target(cls, value: object) -> object:
        return GlobalBatch.parse(str(value)) if isinstance(value, str | int) else value


class RunSpec(Frozen):
    """Everything that determines a run; written to `runs/<id>/spec.yaml` before the first probe."""

    model: ModelSpec
    device: DeviceSpec
    goal: Goal
    optimizer: Optimizer = "adamw"
    space: dict[str, Any]
    """The search space as loaded, so that a resumed run does not depend on the file."""
    space_name: str = "default"
    allow: tuple[str, ...] = ()
    """What may be tried beside the space's values though what is learned differs with it, by the names of `consent`."""
    strategy: StrategyName = DEFAULT_STRATEGY
    """How the space is searched."""
    seed: Seed = 0
    predict: bool = True
    """Let the memory model spare probes: pass over what is predicted not to fit, grow to what should."""
    launcher: LauncherName = "warm"
    """How probes start: forked from a server that has imported the libraries, or each cold."""
    cluster: ClusterTarget | None = None
    """Where on a cluster probes run, as its file said when the run was asked for; None for this machine."""
    limits: Limits = Limits()

    @field_validator("device", mode="before")
    @classmethod
    def _parse_device(cls, value: object) -> object:
        return DeviceSpec.parse(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _device_is_resolved(self) -> RunSpec:
        if self.device.kind == "auto":
            raise ValueError("a run needs a resolved device; 'auto' is replaced before the run is written")
        return self
