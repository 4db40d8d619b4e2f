"""Number types: of parameters, of matrix products, and TF32."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, TrainingChange, Value, all_but, listed
from autotune.techniques.sharding import IN_GRADIENT_SHARDS, OVER_RANKS

PRECISION = Axis(
    "precision",
    "number types of matrix products, parameters, gradients and optimizer state",
    {
        "fp32": Value(title="fp32"),
        "bf16": Value(
            title="bf16",
            saves="About half of the activations.",
            costs="Casts. Autocast also keeps a 16-bit copy of every weight through a step.",
            avoid="the device only emulates bf16; `autotune doctor` says so.",
            dtypes=("bf16",),
        ),
        "fp16": Value(
            title="fp16",
            saves="The same as `bf16`.",
            costs=(
                "The same as `bf16`. The loss scale starts at 2^16, and steps are skipped while it settles; the "
                "record counts them. A scale that falls below 1 ends the probe as non-finite."
            ),
            avoid="the device has bf16, and on a processor, which has no fast fp16 products.",
            rules=(
                Rule(
                    {"loss": ["chunked"]},
                    (
                        "chunked loss makes its gradients with the loss, before the scale that keeps fp16's "
                        "from vanishing"
                    ),
                ),
                Rule(
                    {"optimizer_in_backward": [True]},
                    (
                        "fp16 leaves a step out when any gradient overflowed, which is known after the "
                        "backward pass"
                    ),
                ),
                Rule(
                    {"sharding": IN_GRADIENT_SHARDS},
                    (
                        "torch's gradient scaler looks for overflow in whole gradients, of which "
                        f"{listed(IN_GRADIENT_SHARDS)} keep shards"
                    ),
                ),
                Rule(
                    {"offload": ["gradients", "full"]},
                    "the scale lives on the device, and this offload keeps gradients elsewhere",
                ),
            ),
        ),
        "bf16-pure": Value(
            title="bf16-pure",
            saves="Half of everything: parameters, gradients, optimizer state and activations.",
            costs=(
                "Precision. An update smaller than a 256th of a weight is lost, so long runs with small "
                "learning rates stall."
            ),
            avoid="you pre-train.",
            changes_training=TrainingChange(
                "weights",
                "weights and optimizer state are rounded to bf16, and updates below a 256th of a weight are lost",
            ),
            dtypes=("bf16",),
            rules=(
                Rule(
                    {"sharding": OVER_RANKS},
                    (
                        "the shardings keep parameters in fp32 and gather them in bf16; bf16-pure is for one "
                        "device"
                    ),
                ),
            ),
        ),
        "fp8": Value(
            title="fp8",
            saves=(
                "Time: by the data sheets the products of the blocks' linear layers are twice as fast as in "
                "bf16. Of memory only the 16-bit copies of the blocks' weights; weights, gradients and "
                "optimizer state stay in fp32."
            ),
            costs=(
                "Rounding. Inputs and weights keep 3 bits of fraction in a product, gradients 2. Without "
                "`compile` the casts are predicted to cost more than the products save. Under ZeRO-2 and FSDP2 "
                "weights are gathered in bf16 and rounded where they are multiplied; torchao's all-gather in 8 "
                "bits is not used."
            ),
            avoid=(
                "layer sizes are no multiple of 16, or blocks have no `nn.Linear` (GPT-2): both are refused, "
                "and the message names the layer."
            ),
            changes_training=TrainingChange(
                "products",
                "the blocks' linear layers multiply inputs and weights of 3 bits of fraction, and gradients of 2",
            ),
            packages=("torchao",),
            dtypes=("bf16", "fp8"),
            gpu_only="fp8 is for GPUs that multiply 8-bit floats; a processor only emulates them",
            rules=(
                Rule(
                    {"adapters": all_but("adapters", "none")},
                    (
                        "adapters compute with the layers beside them by themselves, of which fp8 replaces "
                        "the products"
                    ),
                ),
                Rule(
                    {"tensor_parallel": all_but("tensor_parallel", 1)},
                    (
                        "8-bit products of distributed tensors need styles of torchao's own, which "
                        "transformers' plans do not use"
                    ),
                ),
            ),
        ),
    },
)

TF32 = Axis(
    "tf32",
    "multiply fp32 matrices in TF32 on an NVIDIA GPU",
    {
        False: Value(),
        True: Value(
            title="tf32",
            saves="Time: by the data sheets fp32 matrix products are up to eight times as fast. No memory.",
            costs="Precision: products keep 10 bits of fraction instead of 23.",
            avoid=(
                "there is no tensor core for it: on GPUs before Ampere, and on a processor, it does nothing."
            ),
            rules=(
                Rule(
                    {"precision": all_but("precision", "fp32")},
                    ("tf32 is another way to multiply fp32 matrices, and the other precisions multiply none"),
                ),
            ),
        ),
    },
)
