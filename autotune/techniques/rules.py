"""What holds between techniques in every search space: why a combination is refused."""

from __future__ import annotations

from typing import Any

from autotune.candidate import Candidate
from autotune.techniques.constraint import Constraint


def _where(when: dict[str, Any], *rules: tuple[dict[str, Any], str]) -> tuple[Constraint, ...]:
    """Return the rules of one technique: what each requires, and why."""
    return tuple(Constraint(when=when, require=require, because=because) for require, because in rules)


RULES: tuple[Constraint, ...] = (
    *_where(
        {"optimizer_in_backward": True},
        (
            {"offload": "none"},
            "offload keeps optimizer state or gradients elsewhere and updates them after the backward pass, "
            "so no step can be taken inside it",
        ),
        (
            {"sharding": "none"},
            "over several ranks a gradient is whole only after it was reduced, so no step can be taken before that",
        ),
    ),
    *_where(
        {"prefetch": 4},
        ({"workers": [1, 2, 4, 8]}, "without loader workers nothing is made in advance (workers)"),
    ),
    *_where(
        {"offload": "none", "activation_offload": False},
        (
            {"offload_to": "auto"},
            "nothing leaves the device, so there is nothing to put on the host or on disk",
        ),
    ),
    *_where(
        {"offload": "full"},
        (
            {"sharding": ["none", "hsdp", "fsdp2", "zero3"]},
            "full offload brings parameters to the device block by block, as fsdp2, hsdp and zero3 do; the other "
            "shardings keep them there whole",
        ),
    ),
    *_where(
        {"offload": "optimizer", "engine": "torch"},
        (
            {"sharding": ["none", "ddp", "zero2", "hsdp", "fsdp2", "zero3"]},
            "torch's zero1 keeps its shard of the state on the device; offload it with zero2, hsdp, fsdp2 or ddp, or "
            "under DeepSpeed",
        ),
    ),
    *_where(
        {"offload": "gradients"},
        (
            {"sharding": "none"},
            "sharded gradients leave the device with the optimizer and the parameters (fsdp2 with full offload); "
            "gradients alone do on one device",
        ),
    ),
    *_where(
        {"adapters": "lora"},
        (
            {"sharding": ["none", "ddp", "zero1"]},
            "adapters are trained beside weights that are not, of which zero2, hsdp and fsdp2 would keep shards alike",
        ),
    ),
    *_where(
        {"adapters": "qlora"},
        (
            {"sharding": "none", "offload": ["none", "optimizer", "gradients"]},
            "weights in 4 bits are kept by bitsandbytes on one device, which neither shards nor fetches them",
        ),
    ),
    *_where(
        {"engine": "deepspeed"},
        (
            {"sharding": ["zero1", "zero2", "zero3"]},
            "DeepSpeed's engine is offered for ZeRO; one device, ddp, hsdp and fsdp2 are torch's",
        ),
        (
            {"precision": ["fp32", "bf16"]},
            "DeepSpeed keeps masters in fp32 whatever the precision, and scales fp16's loss by rules of its own",
        ),
        (
            {"optimizer": ["adamw", "momentum", "sgd"]},
            "DeepSpeed flattens parameters, so an optimizer that looks at their shapes is another one there",
        ),
        (
            {"offload_to": ["auto", "host"]},
            "DeepSpeed reaches a disk through an extension that has to be compiled against libaio, and nothing of "
            "DeepSpeed is compiled here; offload to disk with torch's shardings",
        ),
        (
            {"loss": "full", "activation_offload": False, "adapters": "none", "compile": "none"},
            "DeepSpeed's hooks are on modules; chunked loss, activation offload, adapters, compilation miss them",
        ),
    ),
    *_where(
        {"sharding": "zero3"},
        (
            {"engine": "deepspeed"},
            "zero3 is DeepSpeed's; torch's is fsdp2",
        ),
    ),
    *_where(
        {"reduce_dtype": "bf16"},
        (
            {"sharding": ["ddp", "zero1", "zero2", "hsdp", "fsdp2", "zero3"]},
            "reduce_dtype is for gradients that ranks add up; one device adds none",
        ),
        (
            {"engine": "torch"},
            "DeepSpeed reduces gradients in the type that it keeps them in, which its precision says",
        ),
    ),
    *_where(
        {"attention": "flash_attention_2"},
        (
            {"precision": ["bf16", "fp16", "bf16-pure", "fp8"]},
            "flash-attn computes in 16 bits alone",
        ),
    ),
    *_where(
        {"precision": "bf16-pure"},
        (
            {"sharding": "none"},
            "the shardings keep parameters in fp32 and gather them in bf16; bf16-pure is for one device",
        ),
    ),
    *_where(
        {"precision": "fp8"},
        (
            {"adapters": "none"},
            "adapters compute with the layers beside them by themselves, of which fp8 replaces the products",
        ),
        (
            {"tensor_parallel": 1},
            "8-bit products of distributed tensors need styles of torchao's own, which transformers' plans do not use",
        ),
    ),
    *_where(
        {"split_limit": ["64MiB", "256MiB"]},
        (
            {"expandable_segments": False},
            "expandable segments grow at their end and are split at any size, so a split limit changes nothing",
        ),
    ),
    *_where(
        {"collect_above": ["60%", "80%"]},
        (
            {"expandable_segments": False},
            "the allocator's garbage collection leaves expandable segments alone",
        ),
    ),
    *_where(
        {"compile": "regional"},
        (
            {"sharding": "none", "offload": ["none", "optimizer", "gradients"]},
            "shards of a block come and go around its forward pass, whose compiled code expects whole parameters",
        ),
        (
            {"checkpointing": ["none", "every-4", "every-2", "full"]},
            "selective checkpointing chooses among operators, of which a compiled block shows none",
        ),
        (
            {"adapters": "none"},
            "with adapters each block is compiled by itself, and torch stops at the eighth",
        ),
    ),
    *_where(
        {"memory_budget": ["75%", "50%", "25%"]},
        (
            {"compile": "regional"},
            "the memory budget is the compiler's choice of what to keep; without it nothing chooses",
        ),
        (
            {"checkpointing": "none"},
            "a checkpoint around a compiled block keeps nothing of it, so a budget for what it keeps changes nothing",
        ),
    ),
    *_where(
        {"kernels": "liger"},
        (
            {"loss": "full"},
            "liger-kernel's linear cross-entropy makes no logits whole either; chunked loss would take its place",
        ),
        (
            {"compile": "none"},
            "liger-kernel fuses by hand what the compiler would fuse, which sees calls of ready kernels alone",
        ),
        (
            {"checkpointing": ["none", "every-4", "every-2", "full"]},
            "liger-kernel rotates queries and keys in the memory that linear layers gave them, which selective "
            "checkpointing keeps: a block would rotate them twice",
        ),
        (
            {"precision": ["fp32", "bf16", "bf16-pure", "fp8"]},
            "liger-kernel's loss makes its gradients with the loss, before the scale that keeps fp16's from vanishing",
        ),
        (
            {"engine": "torch", "tensor_parallel": 1},
            "liger-kernel's loss multiplies by the head's weight itself, past DeepSpeed's hooks on modules and past "
            "what cuts a matrix over ranks",
        ),
    ),
    *_where(
        {"tf32": True},
        (
            {"precision": "fp32"},
            "tf32 is another way to multiply fp32 matrices, and the other precisions multiply none",
        ),
    ),
    *_where(
        {"precision": "fp16"},
        (
            {"loss": "full"},
            "chunked loss makes its gradients with the loss, before the scale that keeps fp16's from vanishing",
        ),
        (
            {"optimizer_in_backward": False},
            "fp16 leaves a step out when any gradient overflowed, which is known after the backward pass",
        ),
        (
            {"sharding": ["none", "ddp", "zero1"]},
            "torch's gradient scaler looks for overflow in whole gradients, of which zero2, hsdp and fsdp2 keep shards",
        ),
        (
            {"offload": ["none", "optimizer"]},
            "the scale lives on the device, and full offload keeps gradients elsewhere",
        ),
    ),
    *_where(
        {"optimizer_kernel": "foreach"},
        (
            {"optimizer": ["adamw", "momentum", "sgd"]},
            "torch's own optimizers have a fused and a foreach implementation; Adafactor and 8-bit AdamW have one",
        ),
    ),
    *_where(
        {"optimizer": "adafactor"},
        (
            {"sharding": ["none", "ddp", "zero1"]},
            "Adafactor sums over rows and columns of whole parameters, of which zero2, hsdp and fsdp2 keep shards",
        ),
    ),
    *_where(
        {"tensor_parallel": [2, 4, 8]},
        (
            {"sharding": ["none", "zero2", "fsdp2"], "engine": "torch"},
            "matrices that are cut are distributed tensors, which only FSDP2 (zero2, fsdp2) shards once more; ddp, "
            "zero1 and DeepSpeed keep flat buffers of plain ones, and hsdp's copies are not offered with it",
        ),
        (
            {"offload": ["none", "optimizer"], "activation_offload": False},
            "what is kept elsewhere is kept by its memory, of which a distributed tensor has none of its own; the "
            "optimizer's state is kept for the slices",
        ),
        (
            {"optimizer": ["adamw", "adamw-8bit", "momentum", "sgd"]},
            "Adafactor sums over rows and columns of whole parameters, of which each rank keeps a slice",
        ),
        (
            {"optimizer_in_backward": False},
            "a slice is updated as a plain tensor, when all gradients are there",
        ),
        (
            {"precision": ["fp32", "bf16", "bf16-pure"]},
            "fp16's gradient scaler looks for overflows on each rank alone, and the ranks of one model must agree; fp8 "
            "casts whole matrices, not slices",
        ),
        (
            {"adapters": "none", "loss": "full", "kernels": "torch"},
            "adapters, chunked loss and liger-kernel's multiply by the matrices themselves, which here are slices",
        ),
        (
            {"compile": "none"},
            "a compiled block expects plain tensors where slices of matrices are distributed ones",
        ),
    ),
)
"""What holds in every search space, because the techniques themselves exclude each other."""


def illegal(candidate: Candidate, accumulation_steps: int = 1) -> str | None:
    """Return why no space allows this candidate with so many micro-steps for each optimizer step, or None."""
    broken = [rule.because for rule in RULES if rule.violated_by(candidate)]
    if candidate.optimizer_in_backward and accumulation_steps > 1:
        broken.append(
            f"gradients that {accumulation_steps} micro-steps accumulate must all be kept until the last one, so an "
            "optimizer step inside backward frees nothing; it needs a micro-batch that is the whole global batch"
        )
    return "; ".join(broken) or None
