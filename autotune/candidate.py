"""A candidate: one full training configuration, as a closed set of typed fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BeforeValidator, field_validator

from autotune.bounds import MOST_BLOCKS, MicroBatch
from autotune.printable import quoted
from autotune.units import MIB, parse_bytes
from autotune.validation import Frozen

Precision = Literal["fp32", "bf16", "fp16", "bf16-pure", "fp8"]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flex_attention"]
Checkpointing = Literal["none", "selective", "alternate", "full", "offloaded"]
Adapters = Literal["none", "lora", "qlora"]
Loss = Literal["full", "chunked"]
Sequences = Literal["full", "padded", "packed"]
NumWorkers = Literal[0, 1, 2, 4, 8]
PrefetchFactor = Literal[2, 4]
Compile = Literal["none", "regional"]
Kernels = Literal["torch", "liger"]
ActivationMemoryBudget = Literal["none", "75%", "50%", "25%"]
Offload = Literal["none", "optimizer", "gradients", "full"]
OffloadTo = Literal["auto", "host", "disk"]
OffloadPlace = Literal["host", "disk"]
Optimizer = Literal["adamw", "adamw-8bit", "adafactor", "momentum", "sgd"]
OptimizerKernel = Literal["fused", "foreach"]
MaxSplitSize = Literal["none", "64MiB", "256MiB"]
GarbageCollectionThreshold = Literal["none", "60%", "80%"]
Sharding = Literal["none", "ddp", "zero1", "zero2", "hsdp", "fsdp2", "zero3"]
Engine = Literal["torch", "deepspeed"]
TensorParallel = Literal[1, 2, 4, 8]
ReduceType = Literal["fp32", "bf16"]
OPEN: Mapping[str, range] = {"checkpointed_blocks": range(1, MOST_BLOCKS + 1)}
"""The axes that take any of so many numbers beside their named values."""


def _read_blocks(value: object) -> object:
    """Take a number of blocks, also as options give it."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        value = int(value)
    if value == "all" or (type(value) is int and value in OPEN["checkpointed_blocks"]):
        return value
    none = "; none of them is `checkpointing: none`" if value == 0 else ""
    raise ValueError(
        f"{quoted(value)} is neither `all` nor a number of blocks from 1 to {MOST_BLOCKS:,}{none}"
    )


CheckpointedBlocks = Annotated[Literal["all"] | int, BeforeValidator(_read_blocks)]
DeviceKind = Literal["cpu", "cuda"]
"""What a step trains on: a simulated GPU is of kind `cuda`."""


class Candidate(Frozen):
    """One way to run a training step. Equal candidates have equal keys, and the key names every field."""

    __slots__ = ("_hash",)

    precision: Precision = "bf16"
    """The number type. `bf16` keeps parameters, gradients and optimizer state in fp32 and multiplies matrices
    in bf16; `fp16` does so in fp16 with a dynamic loss scale; `bf16-pure` keeps everything in bf16, so
    updates below a 256th of a weight are lost; `fp8` is `bf16` with the products of the blocks' linear layers
    in 8 bits (torchao)."""
    tf32: bool = False
    """Whether fp32 matrices are multiplied in TF32 (19 bits, of which 10 are the fraction) on an NVIDIA GPU.
    It has no effect on `cpu`."""
    adapters: Adapters = "none"
    """What trains: all parameters, or with `lora` matrices of rank 16 beside every block's linear layers (peft).
    `qlora` also keeps the frozen weights of those layers in 4 bits (NF4, bitsandbytes)."""
    attention: Attention = "sdpa"
    """The implementation of attention that transformers runs: `sdpa` (torch's kernels; eager where a model has no
    other), `eager` (all scores in memory), `flash_attention_2` (the flash-attn package) or `flex_attention`. The last
    two need a GPU."""
    checkpointing: Checkpointing = "none"
    """What the repeated transformer blocks keep for backward. `full` keeps only each block's input and
    recomputes everything else, and `offloaded` also moves that input off the device. `selective` keeps the
    results of linear layers and of attention; `alternate` keeps those of attention and of every second linear
    layer."""
    checkpointed_blocks: CheckpointedBlocks = "all"
    """How many of the blocks are checkpointed: `all`, or the first so many, fewer than there are. The others keep
    all that they compute."""
    sequences: Sequences = "full"
    """What a row of a batch holds. `full` is one sequence of the whole length. With a dataset's length histogram
    (--lengths) `padded` is one sequence and padding, and `packed` as many sequences as fit, none of which attends to
    another."""
    num_workers: NumWorkers = 0
    """Worker processes of torch's DataLoader, which make batches of a dataset while the model trains. 0 makes batches
    between the steps."""
    prefetch_factor: PrefetchFactor = 2
    """Batches that each worker makes in advance (torch's `prefetch_factor`)."""
    pin_memory: bool = False
    """Whether batches are put into pinned host memory, from which a GPU copies while it computes. It has no effect on
    `cpu`."""
    loss: Loss = "full"
    """How the cross-entropy of a causal language model is computed. `full` makes all logits at once; `chunked` makes
    logits and their gradient for a sixteenth of the sequence at a time."""
    compile: Compile = "none"
    """What torch.compile compiles. `regional` compiles the repeated block once: steps are faster, after a start of a
    minute or so."""
    activation_memory_budget: ActivationMemoryBudget = "none"
    """Share of its activations that a compiled block may keep (torch's `activation_memory_budget`). The compiler
    recomputes the others in backward. It is rough: a smaller budget may take more memory or less time than a larger
    one, so each value has to be tried for itself."""
    kernels: Kernels = "torch"
    """Whose operators a block runs: `torch` means those of torch and of the model, `liger` liger-kernel's
    fused RMSNorm, rotary embedding, SwiGLU and linear cross-entropy (which never makes all logits), for the
    types of models that it supports."""
    activation_offload: bool = False
    """Whether activations are kept off the device from forward to backward: in pinned host memory, on `cpu` in files
    on disk."""
    offload: Offload = "none"
    """What is kept off the device between its uses: nothing, the optimizer state (`optimizer`), gradients too
    (`gradients`), or parameters too (`full`)."""
    offload_to: OffloadTo = "auto"
    """Where offloaded tensors are kept: in `host` memory, or on `disk` in memory-mapped files. `auto` means
    host memory for a GPU, and disk for `cpu`, whose memory the host's is."""
    optimizer: Optimizer = "adamw"
    """The optimizer: `adamw` (two moments a parameter), `adamw-8bit` (the same in 8 bits, bitsandbytes), `adafactor`
    (sums of rows and columns, transformers), `momentum` (SGD with one moment) or `sgd` (plain, without state)."""
    optimizer_kernel: OptimizerKernel = "fused"
    """How torch's own optimizers update. `fused` runs one kernel, in place. `foreach` runs one operator after
    the other, each over all parameters; for AdamW its temporaries are half as large as the state."""
    optimizer_in_backward: bool = False
    """Whether each parameter is updated as soon as its gradient is complete, and the gradient freed. It needs
    a global step of one micro-step."""
    sharding: Sharding = "none"
    """How the ranks of a run share the work; `none` is for one device. `ddp` keeps everything on every rank
    and averages gradients. `zero1` shards the optimizer state. `zero2` shards gradients too, and gathers the
    parameters once for forward and backward. `fsdp2` (torch's ZeRO-3) gathers each block's parameters when
    they are needed. `hsdp` does so inside each node, and replicates across nodes. `zero3` is DeepSpeed's
    ZeRO-3."""
    engine: Engine = "torch"
    """Which library shards: `torch` with DDP, ZeroRedundancyOptimizer and FSDP2, or `deepspeed` with `zero1`,
    `zero2` and `zero3`. Under DeepSpeed's bf16 parameters and gradients are bf16, with an fp32 copy in the
    optimizer's shard."""
    tensor_parallel: TensorParallel = 1
    """Ranks that share one model's matrices and train the same samples, by the plan that transformers ships with the
    model. The world size is this number times the ranks of `sharding`, which train samples of their own."""
    reduce_dtype: ReduceType = "fp32"
    """Number type in which ranks sum their gradients. `bf16` sends half the bytes, and rounds each rank's
    gradients and the sum. Gradients that accumulate over micro-steps, and those that the optimizer reads,
    stay in fp32."""
    expandable_segments: bool = True
    """Whether the CUDA caching allocator maps memory into segments that grow, which fragment less. It has no
    effect on `cpu`."""
    max_split_size: MaxSplitSize = "none"
    """Block size from which on the CUDA caching allocator splits no cached block (`max_split_size_mb`). It
    has no effect on `cpu`."""
    garbage_collection_threshold: GarbageCollectionThreshold = "none"
    """Share of the GPU's memory above which the allocator frees cached blocks that were long unused, before
    it asks for more (`garbage_collection_threshold`). It has no effect on `cpu`."""
    micro_batch: MicroBatch = 1
    """Samples (sequences) that one device takes through forward and backward at a time. The ranks of one
    `tensor_parallel` group take the same samples."""

    @field_validator("tensor_parallel", "num_workers", "prefetch_factor", mode="before")
    @classmethod
    def _read_number(cls, value: object) -> object:
        """Take a number's text, as options give it."""
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    def __hash__(self) -> int:
        """Return the hash of all fields, computed once: a search looks its candidates up again and again."""
        try:
            known: int = self._hash  # type: ignore[attr-defined]
        except AttributeError:
            known = hash(_all_values(self))
            object.__setattr__(self, "_hash", known)
        return known

    def __eq__(self, other: object) -> bool:
        """Tell whether all fields are equal, at one look: what pydantic compares besides, a candidate does not have."""
        if self is other:
            return True
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def key(self) -> str:
        """Return the canonical text of all fields, the same for equal candidates in any process."""
        return _key(self)

    @property
    def distributed(self) -> bool:
        """Whether several ranks train together."""
        return self.sharding != "none" or self.tensor_parallel > 1

    def data_ranks(self, devices: int) -> int:
        """Return how many of so many devices take samples of their own."""
        return max(1, devices // self.tensor_parallel)

    @property
    def math_type(self) -> str:
        """The number type of matrix products, by which a device's peak FLOP/s is known."""
        if self.precision == "fp32":
            return "tf32" if self.tf32 else "fp32"
        return self.precision if self.precision in {"fp16", "fp8"} else "bf16"

    @property
    def kept_share(self) -> float:
        """The memory budget as a share; 1 where there is none."""
        budget = self.activation_memory_budget
        return 1.0 if budget == "none" else int(budget.rstrip("%")) / 100

    @property
    def max_split_size_bytes(self) -> int | None:
        """The split limit in bytes; None where there is none."""
        return None if self.max_split_size == "none" else parse_bytes(self.max_split_size)

    def allocator(self) -> dict[str, str]:
        """Return the options of the CUDA allocator that the candidate sets, as PYTORCH_ALLOC_CONF names them."""
        options = {"expandable_segments": str(self.expandable_segments)}
        if self.max_split_size_bytes is not None:
            options["max_split_size_mb"] = str(self.max_split_size_bytes // MIB)
        threshold = self.garbage_collection_threshold
        if threshold != "none":
            options["garbage_collection_threshold"] = str(int(threshold.rstrip("%")) / 100)
        return options

    def offload_place(self, kind: DeviceKind) -> OffloadPlace:
        """Return where a device of a kind sends what leaves it."""
        if self.offload_to != "auto":
            return self.offload_to
        return "disk" if kind == "cpu" and self.engine == "torch" else "host"

    def traced(self) -> Candidate:
        """Return this candidate with the default allocator and loader, which change nothing that a trace records."""
        names = (*ALLOCATOR, *LOADER)
        return self.model_copy(update={name: Candidate.model_fields[name].default for name in names})

    def rung(self) -> Candidate:
        """Return this candidate at micro-batch 1: candidates on the same rung differ in micro-batch only."""
        return self.at(1)

    def at(self, micro_batch: int) -> Candidate:
        """Return the same rung with another micro-batch (samples)."""
        return self if micro_batch == self.micro_batch else _at(self, micro_batch)

    @property
    def has_separate_optimizer(self) -> bool:
        """Whether the optimizer takes no part in the passes, and is not wrapped by what does (fp16's loss scale)."""
        return not self.optimizer_in_backward and self.precision != "fp16" and self.engine == "torch"

    def with_plainest_passes(self) -> Candidate:
        """Return the candidate with the same parameters, gradients and optimizer, and the plainest way to these."""
        return self.model_copy(update={name: Candidate.model_fields[name].default for name in PASSES})

    def with_plainest_optimizer(self) -> Candidate:
        """Return the candidate whose forward and backward passes are these, with the optimizer that asks for least.

        Where gradients leave the device it is one where they stay (`timeline.leaving_gradients`).
        Itself where its optimizer takes part in them, or is wrapped by what does (fp16's loss scale).
        """
        if not self.has_separate_optimizer:
            return self
        sharding = "ddp" if self.sharding == "zero1" else self.sharding
        plainest: dict[str, object] = {
            "optimizer": "adamw", "optimizer_kernel": "fused", "sharding": sharding,
        }  # fmt: skip
        if self.offload != "full":  # which has shards, and gathers them
            plainest["offload"] = "none"
            if not (self.activation_offload or self.checkpointing == "offloaded"):
                plainest["offload_to"] = "auto"
        return self.model_copy(update=plainest)


def is_choice(field: str, value: object) -> bool:
    """Tell whether a value from a file is one of an axis, of its very type: 1 is no `true`, nor 1.0 a 1."""
    if field in OPEN and type(value) is int:
        return value in OPEN[field]
    return any(type(value) is type(choice) and value == choice for choice in choices(field))


def choices(field: str) -> tuple[object, ...]:
    """Return the values of an axis (every field except `micro_batch`): all of them, or those that an open one names."""
    annotation = Candidate.model_fields[field].annotation
    if field in OPEN:
        annotation = next(part for part in get_args(annotation) if get_origin(part) is Literal)
    return (False, True) if annotation is bool else get_args(annotation)


def examples(field: str) -> tuple[object, ...]:
    """Return the values of an axis, with one number that stands for all that an open one takes."""
    return (*choices(field), *([OPEN[field][0]] if field in OPEN else ()))


def listed_values(field: str) -> str:
    """Return the values of an axis as a message lists them, spelled as a file has them."""
    values = [_text(value) if not isinstance(value, bool) else str(value).lower() for value in choices(field)]
    numbers = [f"a number from {OPEN[field][0]} to {OPEN[field][-1]:,}"] if field in OPEN else []
    return ", ".join([*values, *numbers])


AXES: tuple[str, ...] = tuple(name for name in Candidate.model_fields if name != "micro_batch")
"""The fields that make up a rung, in the order in which keys and tables show them."""


_all_values = attrgetter(*AXES, "micro_batch")


PASSES: tuple[str, ...] = (
    "attention", "checkpointing", "checkpointed_blocks", "loss", "compile", "activation_memory_budget", "kernels",
    "activation_offload",
)  # fmt: skip
"""The fields that change forward and backward, and leave parameters and gradients as they are."""


ON_ONE_MODEL: tuple[str, ...] = ("checkpointing", "checkpointed_blocks", "loss", "activation_offload")
"""Those of them that are put on a model that is there already, and taken off it again."""


ALLOCATOR: tuple[str, ...] = ("expandable_segments", "max_split_size", "garbage_collection_threshold")
"""The fields that set up the CUDA allocator."""


LOADER: tuple[str, ...] = ("num_workers", "pin_memory", "prefetch_factor")
"""The fields that set up the DataLoader."""


def allocator_options(own: str, candidate: Candidate) -> str:
    """Join options of the CUDA allocator that a user set with the candidate's, which go before them."""
    chosen = candidate.allocator()
    kept = [option for option in own.split(",") if option and option.partition(":")[0] not in chosen]
    return ",".join([*kept, *(f"{name}:{value}" for name, value in chosen.items())])


def alike(candidates: Iterable[Candidate]) -> list[tuple[Candidate, ...]]:
    """Sort candidates into groups whose forward and backward passes are the same, the plainest optimizer first.

    A candidate whose plainest is not among them stays alone.
    """
    groups: dict[Candidate, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.with_plainest_optimizer(), []).append(candidate)
    found: list[tuple[Candidate, ...]] = []
    for plainest, members in groups.items():
        if plainest in members:
            # ZeRO-1 moves the parameters into tensors of its own, so it comes last.
            found.append(tuple(sorted(members, key=lambda one: (one != plainest, one.sharding == "zero1"))))
        else:
            found += [(member,) for member in members]
    return found


# A search asks for the same ones at every proposal: this is faster than to copy, and to compare.
@lru_cache(maxsize=2**15)
def _at(candidate: Candidate, micro_batch: int) -> Candidate:
    return candidate.model_copy(update={"micro_batch": micro_batch})


# A search asks for those of its candidates again and again.
@lru_cache(maxsize=4096)
def _key(candidate: Candidate) -> str:
    return ",".join(f"{name}={_text(value)}" for name, value in candidate)


def _text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
