"""Number types: of parameters, of matrix products, and TF32."""

from __future__ import annotations

from autotune.techniques.axis import Axis, Rule, Value

PRECISION = Axis(
    "precision",
    {
        "fp32": Value(title="fp32"),
        "bf16": Value(
            title="bf16",
            saves="half of most activations",
            costs="casts; autocast keeps a 16-bit copy of every weight through a step",
            avoid="the device only emulates bf16 (`doctor` says so)",
            dtypes=("bf16",),
        ),
        "fp16": Value(
            title="fp16",
            saves="as `bf16`",
            costs=(
                "as `bf16`, and steps that are left out while the loss scale settles (it starts at 2^16; "
                "the record counts them). A scale that falls below 1 ends the probe as not finite"
            ),
            avoid=(
                "the device has bf16; a processor, which multiplies no fp16 (15 times slower here); with "
                "chunked loss, full offload, ZeRO-2 or FSDP2: refused"
            ),
            rules=(
                Rule(
                    {"loss": "full"},
                    (
                        "chunked loss makes its gradients with the loss, before the scale that keeps fp16's "
                        "from vanishing"
                    ),
                ),
                Rule(
                    {"optimizer_in_backward": False},
                    (
                        "fp16 leaves a step out when any gradient overflowed, which is known after the "
                        "backward pass"
                    ),
                ),
                Rule(
                    {"sharding": ["none", "ddp", "zero1"]},
                    (
                        "torch's gradient scaler looks for overflow in whole gradients, of which zero2, hsdp "
                        "and fsdp2 keep shards"
                    ),
                ),
                Rule(
                    {"offload": ["none", "optimizer"]},
                    "the scale lives on the device, and full offload keeps gradients elsewhere",
                ),
            ),
        ),
        "bf16-pure": Value(
            title="bf16-pure",
            saves="half of everything",
            costs=(
                "an update smaller than a 256th of a weight is lost, so long runs with small learning "
                "rates stall"
            ),
            avoid="pre-training; several ranks",
            dtypes=("bf16",),
            rules=(
                Rule(
                    {"sharding": "none"},
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
                "nothing in weights, gradients and state, which stay in fp32; no 16-bit copies of the "
                "blocks' weights. Products of the blocks' linear layers are to be twice as fast as in "
                "bf16 (the data sheets' peaks). Not measured here: a GPU is needed"
            ),
            costs=(
                "inputs and weights are rounded to 3 bits of fraction where they are multiplied, "
                "gradients to 2 (`pip install 'autotune[torchao]'`). With `compile`, or the casts cost "
                "what the products save. Its memory is priced by the trace: as bf16, without the copies "
                "of weights and with 8-bit ones where it multiplies. Under ZeRO-2 and FSDP2 weights are "
                "gathered in bf16 and rounded where they multiply; torchao's gathering in 8 bits is not "
                "used"
            ),
            avoid=(
                "GPUs before compute capability 8.9, a processor, sizes that are no multiple of 16 (told "
                "which), blocks without `nn.Linear` (GPT-2), adapters, DeepSpeed: refused"
            ),
            packages=("torchao",),
            dtypes=("bf16", "fp8"),
            gpu_only="fp8 is for GPUs that multiply 8-bit floats; a processor only emulates them",
            rules=(
                Rule(
                    {"adapters": "none"},
                    (
                        "adapters compute with the layers beside them by themselves, of which fp8 replaces "
                        "the products"
                    ),
                ),
                Rule(
                    {"tensor_parallel": 1},
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
    {
        False: Value(),
        True: Value(
            title="tf32",
            saves="nothing; it multiplies fp32 matrices up to eight times as fast",
            costs="10 bits of fraction in products, instead of 23",
            avoid="a processor, where it does nothing; GPUs before Ampere",
            rules=(
                Rule(
                    {"precision": "fp32"},
                    ("tf32 is another way to multiply fp32 matrices, and the other precisions multiply none"),
                ),
            ),
        ),
    },
)
