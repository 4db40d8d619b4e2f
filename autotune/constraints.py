"""Rules between the fields of a candidate: which techniques do not go together, and why."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from autotune.candidate import AXES, Candidate, choices
from autotune.errors import nearest
from autotune.validation import Frozen


class Constraint(Frozen):
    """A rule between axes: where `when` holds, `require` must hold too. A list of values means any of them."""

    when: dict[str, Any]
    require: dict[str, Any]
    because: str
    """The reason, shown to whoever asks for an illegal combination."""

    @field_validator("when", "require")
    @classmethod
    def _names_axes(cls, value: dict[str, Any]) -> dict[str, Any]:
        if problems := axis_problems({axis: _listed(choice) for axis, choice in value.items()}):
            raise ValueError("; ".join(problems))
        return value

    def violated_by(self, candidate: Candidate) -> bool:
        """Tell whether the candidate breaks this rule."""
        return _holds(self.when, candidate) and not _holds(self.require, candidate)


def axis_problems(axes: dict[str, Any]) -> list[str]:
    """Return what is wrong with values listed for axes: unknown names and values, empty lists."""
    problems = []
    for axis, values in axes.items():
        if axis not in AXES:
            problems.append(f"{axis}: unknown axis; {nearest(axis, AXES)}")
            continue
        valid = choices(axis)
        problems += [
            f"{axis}: {value!r} is not one of {', '.join(map(str, valid))}"
            for value in values
            if value not in valid
        ]
        if not values:
            problems.append(f"{axis}: at least one value is needed")
    return problems


def _listed(choice: Any) -> Any:
    return choice if isinstance(choice, list | tuple) else [choice]


def _holds(conditions: dict[str, Any], candidate: Candidate) -> bool:
    return all(getattr(candidate, axis) in _listed(choice) for axis, choice in conditions.items())


RULES: tuple[Constraint, ...] = (
    Constraint(
        when={"optimizer_in_backward": True},
        require={"offload": "none"},
        because="offload keeps optimizer state or gradients elsewhere and updates them after the backward pass, "
        "so no step can be taken inside it",
    ),
    Constraint(
        when={"optimizer_in_backward": True},
        require={"sharding": "none"},
        because="over several ranks a gradient is whole only after it was reduced, so no step can be taken before that",
    ),
    Constraint(
        when={"offload": "full"},
        require={"sharding": ["none", "fsdp2"]},
        because="full offload brings parameters to the device block by block, which is fsdp2; the other shardings keep "
        "them there whole",
    ),
    Constraint(
        when={"offload": "optimizer"},
        require={"sharding": ["none", "ddp", "zero2", "fsdp2", "zero3"]},
        because="zero1's optimizer keeps its shard of the state on the device; offload it with zero2, fsdp2 or ddp",
    ),
    Constraint(
        when={"offload": "gradients"},
        require={"sharding": "none"},
        because="sharded gradients leave the device with the optimizer and the parameters (fsdp2 with full offload); "
        "gradients alone do on one device",
    ),
    Constraint(
        when={"adapters": "lora"},
        require={"sharding": ["none", "ddp", "zero1"]},
        because="adapters are trained beside weights that are not, of which zero2 and fsdp2 would keep shards alike",
    ),
    Constraint(
        when={"adapters": "qlora"},
        require={"sharding": "none", "offload": ["none", "optimizer", "gradients"]},
        because="weights in 4 bits are kept by bitsandbytes on one device, which neither shards nor fetches them",
    ),
    Constraint(
        when={"engine": "deepspeed"},
        require={"sharding": ["zero1", "zero2", "zero3"]},
        because="DeepSpeed's engine is offered for ZeRO; one device, ddp and fsdp2 are torch's",
    ),
    Constraint(
        when={"sharding": "zero3"},
        require={"engine": "deepspeed"},
        because="zero3 is DeepSpeed's; torch's is fsdp2",
    ),
    Constraint(
        when={"engine": "deepspeed"},
        require={"precision": ["fp32", "bf16"]},
        because="DeepSpeed keeps masters in fp32 whatever the precision, and scales fp16's loss by rules of its own",
    ),
    Constraint(
        when={"engine": "deepspeed"},
        require={"optimizer": ["adamw", "momentum", "sgd"]},
        because="DeepSpeed flattens parameters, so an optimizer that looks at their shapes is another one there",
    ),
    Constraint(
        when={"engine": "deepspeed"},
        require={"loss": "full", "activation_offload": False, "adapters": "none", "compile": "none"},
        because="DeepSpeed's hooks are on modules; chunked loss, activation offload, adapters, compilation miss them",
    ),
    Constraint(
        when={"attention": "flash_attention_2"},
        require={"precision": ["bf16", "fp16", "bf16-pure"]},
        because="flash-attn computes in 16 bits alone",
    ),
    Constraint(
        when={"precision": "bf16-pure"},
        require={"sharding": "none"},
        because="the shardings keep parameters in fp32 and gather them in bf16; bf16-pure is for one device",
    ),
    Constraint(
        when={"split_limit": ["64MiB", "256MiB"]},
        require={"expandable_segments": False},
        because="expandable segments grow at their end and are split at any size, so a split limit changes nothing",
    ),
    Constraint(
        when={"collect_above": ["60%", "80%"]},
        require={"expandable_segments": False},
        because="the allocator's garbage collection leaves expandable segments alone",
    ),
    Constraint(
        when={"compile": "regional"},
        require={"sharding": "none", "offload": ["none", "optimizer", "gradients"]},
        because="shards of a block come and go around its forward pass, whose compiled code expects whole parameters",
    ),
    Constraint(
        when={"compile": "regional"},
        require={"checkpointing": ["none", "every-4", "every-2", "full"]},
        because="selective checkpointing chooses among operators, of which a compiled block shows none",
    ),
    Constraint(
        when={"compile": "regional"},
        require={"adapters": "none"},
        because="with adapters each block is compiled by itself, and torch stops at the eighth",
    ),
    Constraint(
        when={"tf32": True},
        require={"precision": "fp32"},
        because="tf32 is another way to multiply fp32 matrices, and the other precisions multiply none",
    ),
    Constraint(
        when={"precision": "fp16"},
        require={"loss": "full"},
        because="chunked loss makes its gradients with the loss, before the scale that keeps fp16's from vanishing",
    ),
    Constraint(
        when={"precision": "fp16"},
        require={"optimizer_in_backward": False},
        because="fp16 leaves a step out when any gradient overflowed, which is known after the backward pass",
    ),
    Constraint(
        when={"precision": "fp16"},
        require={"sharding": ["none", "ddp", "zero1"]},
        because="torch's gradient scaler looks for overflows in whole gradients, of which zero2 and fsdp2 keep shards",
    ),
    Constraint(
        when={"precision": "fp16"},
        require={"offload": ["none", "optimizer"]},
        because="the scale lives on the device, and full offload keeps gradients elsewhere",
    ),
    Constraint(
        when={"optimizer": "adafactor"},
        require={"sharding": ["none", "ddp", "zero1"]},
        because="Adafactor sums over rows and columns of whole parameters, of which zero2 and fsdp2 keep shards",
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


Kind = Literal["cpu", "cuda"]


def misplaced(candidate: Candidate, world_size: int, kind: Kind) -> str | None:
    """Return why `world_size` ranks on devices of a kind cannot run a candidate that is legal elsewhere, or None."""
    if candidate.sharding == "none" and world_size > 1:
        return f"{world_size} ranks need a sharding: ddp, zero1, zero2 or fsdp2 (or DeepSpeed's zero3)"
    if candidate.sharding != "none" and world_size == 1:
        return f"{candidate.sharding} shares the work out over several ranks, and there is one (--gpus)"
    if candidate.sharding == "fsdp2" and candidate.offload == "full" and kind == "cpu":
        return "full offload on the cpu device moves whole parameters to files, not shards; offload the optimizer"
    return None
