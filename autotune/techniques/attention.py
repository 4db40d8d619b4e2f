"""Who computes attention."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

ATTENTION = Axis(
    "attention",
    "attention kernels",
    {
        "sdpa": Value(
            saves="The attention scores, which torch's fused kernels never write to memory.",
            costs="Nothing.",
            avoid="a model has eager attention only. It then runs that, and the report says so.",
        ),
        "eager": Value(
            slowdown=1.15,
            title="eager",
            saves="Nothing. It keeps all scores, so memory grows with the square of the sequence length.",
            costs="Memory and time on all but short sequences.",
            avoid="you do not need it as the reference.",
        ),
        "flash_attention_2": Value(
            title="flash attention 2",
            short="flash",
            saves="The same as `sdpa`. It needs no mask for sliding windows and packed rows.",
            costs=(
                "A package that has to be compiled or downloaded for your versions of torch and CUDA. Full rows "
                "are predicted without the package, as torch's kernel of the same source; padded and packed "
                "rows are probed."
            ),
            avoid="`sdpa` runs torch's flash kernel already, which is the same algorithm.",
            packages=("flash-attn",),
            gpu_only="flash_attention_2 trains on a GPU only",
            rules=(
                Rule(
                    {"precision": ["fp32"]},
                    "flash-attn computes in 16 bits alone",
                ),
            ),
        ),
        "flex_attention": Value(
            title="flex attention",
            short="flex",
            saves="The same as `sdpa`.",
            costs=(
                "A start of its own, because it compiles itself. No trace predicts its memory: it is probed."
            ),
            avoid="its memory has to be known before a probe.",
            gpu_only="flex_attention trains on a GPU only",
            needs_compiler=True,
        ),
    },
)
