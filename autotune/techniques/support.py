"""What this machine lacks for a candidate, found without torch: packages, a compiler, a GPU that can."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from autotune.candidate import AXES, Candidate, choices
from autotune.devices.device import DeviceFacts
from autotune.environment import installed, lacks_compiler, liger_models
from autotune.errors import nearest
from autotune.specs import ModelSpec
from autotune.techniques.rules import illegal
from autotune.techniques.topology import misplaced

PACKAGES: Mapping[tuple[str, object], tuple[str, ...]] = {
    ("precision", "fp8"): ("torchao",),
    ("attention", "flash_attention_2"): ("flash-attn",),
    ("adapters", "lora"): ("peft",),
    ("adapters", "qlora"): ("peft", "bitsandbytes"),
    ("kernels", "liger"): ("liger-kernel",),
    ("optimizer", "adamw-8bit"): ("bitsandbytes",),
    ("engine", "deepspeed"): ("deepspeed",),
}
"""The packages, beyond autotune's own, that values of axes need."""
INSTALL = {
    "flash-attn": "flash-attn",
    "deepspeed": "'autotune[deepspeed]' (with DS_BUILD_OPS=0)",
    "liger-kernel": "'autotune[liger]'",
}
"""What to hand to pip, where that is not the extra of the package's name."""
GPU_ALONE = (("attention", "flash_attention_2"), ("attention", "flex_attention"))
"""Values that train on a GPU only, for want of kernels elsewhere."""


def lacks_type(candidate: Candidate, facts: DeviceFacts) -> str | None:
    """Return which type of numbers a device does not compute in though the candidate does, or None."""
    if candidate.precision == "fp8" and not facts.supports_fp8:
        return f"{facts.name} does not multiply 8-bit floats"
    if candidate.needs_bf16 and not facts.supports_bf16:
        return f"{facts.name} has no bf16"
    return None


def lacking(candidate: Candidate, facts: DeviceFacts) -> str | None:
    """Return what this machine, with a device of these facts, lacks for a candidate that is legal, or None."""
    chosen = _chosen(candidate)
    reasons = [f"{value} trains on a GPU only" for axis, value in GPU_ALONE
               if (axis, value) in chosen and facts.kind == "cpu"]  # fmt: skip
    if reason := lacks_type(candidate, facts):
        reasons.append(reason)
    if candidate.compile != "none" and (reason := lacks_compiler(facts.kind)):
        reasons.append(reason)
    reasons += [
        f"{name} is not installed: pip install {INSTALL.get(name) or repr(f'autotune[{name}]')}"
        for name, version in packages(candidate).items()
        if version is None
    ]
    return "; ".join(reasons) or None


def packages(candidate: Candidate) -> dict[str, str | None]:
    """Return the packages, beyond autotune's own, that a candidate needs, each with its version, if it is installed."""
    needed = dict.fromkeys(name for pair in _chosen(candidate) for name in PACKAGES.get(pair, ()))
    return {name: installed(name) for name in needed}


def _chosen(candidate: Candidate) -> list[tuple[str, object]]:
    return [(axis, getattr(candidate, axis)) for axis in AXES]


def unpatched(candidate: Candidate, model: ModelSpec) -> str | None:
    """Return why liger-kernel has no kernels for this model, or None where it has, or where it cannot be told."""
    if candidate.kernels != "liger":
        return None
    if model.source == "function":
        return "liger-kernel patches models of transformers, and this one is a function of your own"
    kind, known = (model.config or {}).get("model_type"), liger_models()
    if known is None or kind in known:
        return None
    return (
        f"liger-kernel {installed('liger-kernel')} has no kernels for a {kind}; {nearest(str(kind), known)}"
    )


def unsupported(axis: str, value: object, facts: DeviceFacts) -> str | None:
    """Return why this machine cannot run a value of an axis in any candidate, or None."""
    candidate = simplest(axis, value)
    nodes = 2 if candidate.sharding == "hsdp" else 1
    ranks = (1 if candidate.sharding == "none" else 2) * candidate.tensor_parallel * nodes
    return misplaced(candidate, ranks, facts.kind, nodes) or lacking(candidate, facts)


def simplest(axis: str, value: object) -> Candidate:
    """Return a legal candidate with a value of an axis that differs from the default in as few others as possible."""
    others = [(name, choice) for name in AXES if name != axis for choice in choices(name)]
    for count in range(3):
        for changes in combinations(others, count):
            candidate = Candidate.model_validate({**dict(changes), axis: value})
            if illegal(candidate) is None:
                return candidate
    raise AssertionError(f"no legal candidate has {axis} {value}")
