"""A candidate: one full training configuration, as a closed set of typed fields."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, get_args

from pydantic import field_validator

from autotune.bounds import MicroBatch
from autotune.units import MIB, parse_bytes
from autotune.validation import Frozen

Precision = Literal["fp32", "bf16", "fp16", "bf16-pure", "fp8"]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flex_attention"]
Checkpointing = Literal["none", "selective", "alternate", "every-4", "every-2", "full", "offloaded"]
Adapters = Literal["none", "lora", "qlora"]
Loss = Literal["full", "chunked"]
Sequences = Literal["full", "padded", "packed"]
Workers = Literal[0, 1, 2, 4, 8]
Prefetch = Literal[2, 4]
Compile = Literal["none", "regional"]
Kernels = Literal["torch", "liger"]
MemoryBudget = Literal["none", "75%", "50%", "25%"]
Offload = Literal["none", "optimizer", "gradients", "full"]
OffloadTo = Literal["auto", "host", "disk"]
OffloadPlace = Literal["host", "disk"]
Optimizer = Literal["adamw", "adamw-8bit", "adafactor", "momentum", "sgd"]
OptimizerKernel = Literal["fused", "foreach"]
SplitLimit = Literal["none", "64MiB", "256MiB"]
CollectAbove = Literal["none", "60%", "80%"]
Sharding = Literal["none", "ddp", "zero1", "zero2", "hsdp", "fsdp2", "zero3"]
Engine = Literal["torch", "deepspeed"]
TensorParallel = Literal[1, 2, 4, 8]
ReduceType = Literal["fp32", "bf16"]


class Candidate(Frozen):
    """One way to run a training step. Equal candidates have equal keys, and the key names every field."""

    precision: Precision = "bf16"
    """`fp32`; `bf16`: parameters, gradients and optimizer state in fp32, matrix products in bf16; `fp16`: the same with
    fp16 and a dynamic loss scale; `bf16-pure`: all of it in bf16, so updates below a 256th of a weight are lost;
    `fp8`: as bf16, with the products of the blocks' linear layers in 8 bits (torchao)."""
    tf32: bool = False
    """Multiply fp32 matrices in TF32 (19 bits, of which 10 are the fraction) on an NVIDIA GPU; no effect on `cpu`."""
    adapters: Adapters = "none"
    """What trains: all parameters, or with `lora` matrices of rank 16 beside every block's linear layers (peft);
    `qlora` keeps those layers in 4 bits beside that (NF4, bitsandbytes)."""
    attention: Attention = "sdpa"
    """What transformers runs: `sdpa` (torch's kernels; eager where a model has no other), `eager` (all scores in
    memory), `flash_attention_2` (the flash-attn package) or `flex_attention`, the last two on a GPU."""
    checkpointing: Checkpointing = "none"
    """`full` keeps only the input of every repeated transformer block and recomputes the rest in backward, `offloaded`
    keeps that off the device; `every-4`
    and `every-2` do so in every fourth and second block; `selective` keeps what linear layers and attention gave,
    `alternate` what every second linear layer and attention did."""
    sequences: Sequences = "full"
    """What a row of a batch holds: `full`, one sequence of the whole length. With a dataset's length histogram
    (--lengths): `padded`, one sequence and padding, or `packed`, as many as fit, none of which attends to another."""
    workers: Workers = 0
    """Processes that make batches of a dataset beside the training's, torch's DataLoader; 0 makes them in between."""
    prefetch: Prefetch = 2
    """Batches that each worker makes in advance."""
    pin_memory: bool = False
    """Batches are put in pinned host memory, from which a GPU copies while it computes; no effect on `cpu`."""
    loss: Loss = "full"
    """`chunked` makes a causal language model's logits and their gradients a sixteenth of the sequence at a time."""
    compile: Compile = "none"
    """`regional` compiles the repeated block once, by torch.compile: faster steps, after a start of a minute or so."""
    memory_budget: MemoryBudget = "none"
    """Share of its activations that a compiled block may keep; the compiler makes the rest again in backward. It is
    rough: a smaller budget may take more memory or less time than a larger one, so none tells anything of another."""
    kernels: Kernels = "torch"
    """Who wrote the operators of a block: `torch` (and the model), or `liger`: liger-kernel's fused RMSNorm, rotation,
    SwiGLU and linear cross-entropy (which makes no logits whole), for the types of models that it has them for."""
    activation_offload: bool = False
    """Activations rest off the device from forward to backward: in pinned host memory, on `cpu` in files on disk."""
    offload: Offload = "none"
    """What leaves the device: nothing; optimizer state; gradients with it (`gradients`); parameters too (`full`)."""
    offload_to: OffloadTo = "auto"
    """Where it rests, and activations that leave: in the `host`'s memory, on `disk` in memory-mapped files, or by
    `auto` in the next place down: a GPU's on the host, and a processor's, whose memory the host's is, on disk."""
    optimizer: Optimizer = "adamw"
    """`adamw` (two moments a parameter), `adamw-8bit` (the same in 8 bits, bitsandbytes), `adafactor` (sums of rows
    and columns, transformers), `momentum` (SGD with one moment) or `sgd` (plain, stateless)."""
    optimizer_kernel: OptimizerKernel = "fused"
    """How torch's own optimizers update: `fused` all of it in one kernel, in place; `foreach` one operator after the
    other, each over all parameters, for which AdamW makes temporaries as large as half its state."""
    optimizer_in_backward: bool = False
    """Update each parameter as soon as its gradient is there, and free that gradient; one micro-step a global step."""
    sharding: Sharding = "none"
    """How the ranks of a run share the work: `none` on one device. `ddp` keeps everything on every rank and averages
    gradients; `zero1` shards the optimizer state beside that; `zero2` shards gradients too, and gathers the
    parameters once for forward and backward; `fsdp2` (torch's ZeRO-3) gathers each block's parameters where they are
    needed; `hsdp` does so inside each node, and replicates across nodes; `zero3` is DeepSpeed's."""
    engine: Engine = "torch"
    """What shards: torch's own DDP, ZeroRedundancyOptimizer and FSDP2, or `deepspeed` under `zero1`, `zero2`, `zero3`,
    where bf16 keeps parameters and gradients in bf16, and an fp32 copy in the optimizer's shard."""
    tensor_parallel: TensorParallel = 1
    """Ranks that share one model's matrices and take the same samples, by the plan that transformers ships with the
    model. The ranks of a run are those of `sharding`, which take samples of their own, times these."""
    reduce_dtype: ReduceType = "fp32"
    """Number type in which ranks add up their gradients: `bf16` sends half the bytes, and rounds what each rank sends
    and what comes of it. Gradients that micro-steps add up, and the optimizer's, stay in fp32."""
    expandable_segments: bool = True
    """CUDA caching allocator maps memory into growing segments (less fragmentation); no effect on `cpu`."""
    split_limit: SplitLimit = "none"
    """CUDA caching allocator cuts no block from one of this size or more (`max_split_size_mb`); no effect on `cpu`."""
    collect_above: CollectAbove = "none"
    """Share of the GPU's memory above which the allocator gives back cached blocks that were long unused, before it
    takes more (`garbage_collection_threshold`); no effect on `cpu`."""
    micro_batch: MicroBatch = 1
    """Sequences (samples) that one device takes through forward and backward at a time; the ranks of one
    `tensor_parallel` group take the same."""

    @field_validator("tensor_parallel", mode="before")
    @classmethod
    def _read_number(cls, value: object) -> object:
        """Take a number's text, as options give it."""
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @field_validator("workers", "prefetch", mode="before")
    @classmethod
    def _accept_digits(cls, value: object) -> object:
        """Take numbers as a command line gives them."""
        return int(value) if isinstance(value, str) and value.isdigit() else value

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
        return 1.0 if self.memory_budget == "none" else int(self.memory_budget.rstrip("%")) / 100

    @property
    def split_limit_bytes(self) -> int | None:
        """The split limit in bytes; None where there is none."""
        return None if self.split_limit == "none" else parse_bytes(self.split_limit)

    def allocator(self) -> dict[str, str]:
        """Return the options of the CUDA allocator that the candidate sets, as PYTORCH_ALLOC_CONF names them."""
        options = {"expandable_segments": str(self.expandable_segments)}
        if self.split_limit_bytes is not None:
            options["max_split_size_mb"] = str(self.split_limit_bytes // MIB)
        if self.collect_above != "none":
            options["garbage_collection_threshold"] = str(int(self.collect_above.rstrip("%")) / 100)
        return options

    def offload_place(self, kind: Literal["cpu", "cuda"]) -> OffloadPlace:
        """Return where a device of a kind sends what leaves it."""
        if self.offload_to != "auto":
            return self.offload_to
        return "disk" if kind == "cpu" and self.engine == "torch" else "host"

    def traced(self) -> Candidate:
        """Return it with the defaults of what changes nothing that a step asks of the device: allocator and loader."""
        names = (*ALLOCATOR, *LOADER)
        return self.model_copy(update={name: Candidate.model_fields[name].default for name in names})

    def rung(self) -> Candidate:
        """Return this candidate at micro-batch 1: candidates on the same rung differ in micro-batch only."""
        return self.at(1)

    def at(self, micro_batch: int) -> Candidate:
        """Return the same rung with another micro-batch (samples)."""
        return self.model_copy(update={"micro_batch": micro_batch})

    def with_plainest_optimizer(self) -> Candidate:
        """Return the candidate whose forward and backward passes are these, with the optimizer that asks for least.

        Itself where its optimizer takes part in them, or is wrapped by what does (fp16's loss scale).
        """
        if (
            self.offload not in {"none", "optimizer"}
            or self.optimizer_in_backward
            or self.precision == "fp16"
            or self.engine != "torch"
        ):
            return self
        sharding = "ddp" if self.sharding == "zero1" else self.sharding
        plainest: dict[str, object] = {
            "optimizer": "adamw", "optimizer_kernel": "fused", "offload": "none", "sharding": sharding,
        }  # fmt: skip
        if not self.activation_offload:
            plainest["offload_to"] = "auto"
        return self.model_copy(update=plainest)


def is_choice(field: str, value: object) -> bool:
    """Tell whether a value from a file is one of an axis, of its very type: 1 is no `true`, nor 1.0 a 1."""
    return any(type(value) is type(choice) and value == choice for choice in choices(field))


def choices(field: str) -> tuple[object, ...]:
    """Return the closed set of values of an axis (every field except `micro_batch`)."""
    annotation = Candidate.model_fields[field].annotation
    return (False, True) if annotation is bool else get_args(annotation)


AXES: tuple[str, ...] = tuple(name for name in Candidate.model_fields if name != "micro_batch")
"""The fields that make up a rung, in the order in which keys and tables show them."""


ALLOCATOR: tuple[str, ...] = ("expandable_segments", "split_limit", "collect_above")
"""The fields that set up the CUDA allocator."""


LOADER: tuple[str, ...] = ("workers", "pin_memory", "prefetch")
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


@lru_cache(maxsize=4096)  # a search asks for those of its candidates again and again
def _key(candidate: Candidate) -> str:
    return ",".join(f"{name}={_text(value)}" for name, value in candidate)


def _text(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
