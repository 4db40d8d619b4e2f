"""What trains: all parameters, or small matrices beside them (LoRA, Hu et al. 2021; QLoRA, Dettmers et al. 2023)."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

ADAPTERS = Axis(
    "adapters",
    {
        "none": Value(),
        "lora": Value(
            title="LoRA",
            saves="gradients and optimizer state of all but 0.1 to 1% of the parameters",
            costs="another training: the weights stay as they are. Activations stay as large",
            avoid="pre-training; experts that are one tensor are left out",
            packages=("peft",),
            rules=(
                Rule(
                    {"sharding": ["none", "ddp", "zero1"]},
                    (
                        "adapters are trained beside weights that are not, of which zero2, hsdp and fsdp2 "
                        "would keep shards alike"
                    ),
                ),
            ),
        ),
        "qlora": Value(
            title="QLoRA",
            saves=(
                "27 of every 32 bits of the blocks' weights too (NF4 with a scale for 64 weights: 4.5 "
                "bits each)"
            ),
            costs="each weight is made whole twice a step, and off by up to 15% of its block's largest",
            avoid=(
                "weights fit in 16 bits; several ranks, full offload: refused. Scales are not quantized again"
            ),
            packages=("peft", "bitsandbytes"),
            rules=(
                Rule(
                    {"sharding": "none", "offload": ["none", "optimizer", "gradients"]},
                    (
                        "weights in 4 bits are kept by bitsandbytes on one device, which neither shards nor "
                        "fetches them"
                    ),
                ),
            ),
        ),
    },
    not_exported="adapters are put beside the layers that autotune found to be a block's",
)
