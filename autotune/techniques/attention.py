"""Who computes attention."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

ATTENTION = Axis(
    "attention",
    {
        "sdpa": Value(
            saves="scores are never kept",
            costs="nothing",
            avoid="a model has no other than eager: then it runs that",
        ),
        "eager": Value(
            title="eager",
            saves="nothing; it keeps all scores",
            costs="memory that grows with the square of the sequence",
            avoid="almost anywhere: it is the reference",
        ),
        "flash_attention_2": Value(
            title="flash attention 2",
            saves="as `sdpa`, and needs no mask for windows and packed rows",
            costs=(
                "a package, and 16 bits. It is priced without the package, as torch's kernel of "
                "the same source, where rows are whole; padded and packed rows under it are probed"
            ),
            avoid="no GPU",
            packages=("flash-attn",),
            gpu_only="flash_attention_2 trains on a GPU only",
            rules=(
                Rule(
                    {"precision": ["bf16", "fp16", "bf16-pure", "fp8"]},
                    "flash-attn computes in 16 bits alone",
                ),
            ),
        ),
        "flex_attention": Value(
            title="flex attention",
            saves="as `sdpa`",
            costs="it compiles itself, so no trace prices it: it is probed",
            avoid="no GPU",
            gpu_only="flex_attention trains on a GPU only",
        ),
    },
)
