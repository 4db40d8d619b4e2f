"""What trains: all parameters, or small matrices beside them (LoRA, Hu et al. 2021; QLoRA, Dettmers et al. 2023)."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, TrainingChange, Value
from autotune.techniques.sharding import OVER_RANKS

ADAPTERS = Axis(
    "adapters",
    "small matrices beside the linear layers, which train in place of all parameters",
    {
        "none": Value(),
        "lora": Value(
            title="LoRA",
            saves=(
                "Gradients and optimizer state of all parameters but the adapters, which are 0.1 to 1% of them."
            ),
            costs="It is another training: the base weights do not change. Activations stay as large.",
            avoid=(
                "you pre-train. A mixture of experts whose experts are one tensor gets no adapters on them."
            ),
            changes_training=TrainingChange(
                "what trains",
                "small matrices beside the linear layers train, and the model's own weights do not",
            ),
            packages=("peft",),
        ),
        "qlora": Value(
            title="QLoRA",
            saves=(
                "What `lora` saves, and 27.5 of every 32 bits of the blocks' weights (NF4 with one scale for 64 "
                "weights: 4.5 bits a weight)."
            ),
            costs=(
                "Each weight is dequantized twice a step, and is off by up to 15% of the largest of its group "
                "of 64. The scales themselves are not quantized again."
            ),
            avoid="the weights fit in 16 bits.",
            changes_training=TrainingChange(
                "what trains",
                "small matrices beside the linear layers train, and the blocks' own weights are rounded to 4 bits",
            ),
            packages=("peft", "bitsandbytes"),
            rules=(
                Rule(
                    {"sharding": OVER_RANKS, "offload": ["full"]},
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
