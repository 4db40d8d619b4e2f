"""Memory of training in closed form: what the literature and the frameworks' documentation compute.

The trace (`autotune.worker.tracing.trace`) counts what a model's code really allocates; this is what is known without
running any of it: an estimate in microseconds, and a check on the trace. All amounts are bytes on one device unless
they are named otherwise.

Sources, by the names used below:

- ZeRO: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", figure 1.
- Korthikanti: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.
- Flash: Dao 2023, "FlashAttention-2"; it keeps one float32 log-sum a row and head instead of the scores.
- DeepSpeed: `estimate_zero2_model_states_mem_needs` and its like for stage 3, deepspeed/runtime/zero.
- 8-bit: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"; QLoRA: Dettmers et al. 2023, section 3.
- foreach: the documentation of torch.optim.AdamW: at its peak a list of tensors, as large as the parameters.
- Adafactor: Shazeer and Stern 2018; LoRA: Hu et al. 2021.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from autotune.candidate import Optimizer, Sharding
from autotune.techniques.sharding import SHARDINGS
from autotune.validation import Frozen

NonNegative = Annotated[int, Field(ge=0)]

MixedPrecision = Literal["fp32", "bf16", "fp16", "autocast"]
"""`fp32`; 16-bit weights and gradients with a float32 master copy (`bf16`, `fp16`); `autocast`: float32 weights and
gradients, 16-bit activations."""

BLOCK_8BIT = 256
"""Values that share one float32 scale in 8-bit optimizer state (bitsandbytes)."""
BLOCK_4BIT = 64
"""Values that share one scale in 4-bit weights (QLoRA)."""
BLOCK_SCALES = 256
"""Scales that share a second one under double quantization (QLoRA): 8-bit scales with float32 scales of their own."""


class Architecture(Frozen):
    """The numbers of a decoder-only Transformer that its memory depends on."""

    layers: NonNegative
    hidden: NonNegative
    heads: NonNegative
    kv_heads: NonNegative
    """Heads of keys and values: equal to `heads` without grouped-query attention."""
    head_dim: NonNegative
    intermediate: NonNegative
    """Width of the feed-forward layer, of one expert in a mixture."""
    vocab: NonNegative
    gated: bool = True
    """Three matrices in a feed-forward layer (SwiGLU and the like) instead of two."""
    experts: NonNegative = 0
    """Experts a layer; 0 for a dense model."""
    experts_per_token: NonNegative = 0
    tied: bool = False
    """Input and output embeddings are one matrix."""

    def expert_parameters(self) -> int:
        """Return the parameters of one feed-forward layer, or of one expert."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate

    def layer_parameters(self) -> int:
        """Return the parameters of one layer, without biases and positions."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        router = self.experts * self.hidden
        return attention + max(1, self.experts) * self.expert_parameters() + router + 2 * self.hidden

    def parameters(self) -> int:
        """Return all parameters, without biases and learned positions."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * self.layer_parameters() + embeddings + self.hidden

    def slice_parameters(self, ranks: int) -> float:
        """Return the parameters on each rank of tensor parallelism: all matrices are cut, norms and routers are not."""
        whole = self.hidden + self.layers * (2 * self.hidden + self.experts * self.hidden)
        return whole + (self.parameters() - whole) / ranks


class States(NamedTuple):
    """What training keeps for the weights."""

    parameters: float
    gradients: float
    optimizer_state: float
    master_weights: float

    @property
    def total(self) -> float:
        """The sum of all parts, in bytes a parameter or bytes, as the parts are."""
        return sum(self)


def state_bytes(optimizer: Optimizer, rows: int = 0, columns: int = 0) -> float:
    """Return the bytes of optimizer state for one trained parameter, master weights apart.

    SGD none; momentum one float32; Adam two (Kingma and Ba 2014); 8-bit Adam two bytes and their blocks' scales
    (8-bit). Adafactor keeps a row's and a column's sums of a matrix of `rows` x `columns`, and a full float32 for
    what is no matrix.
    """
    match optimizer:
        case "sgd":
            return 0.0
        case "momentum":
            return 4.0
        case "adamw":
            return 8.0
        case "adamw-8bit":
            return 2 * (1 + 4 / BLOCK_8BIT)
        case "adafactor":
            return 4 * (rows + columns) / (rows * columns) if rows and columns else 4.0


def weight_bytes(precision: MixedPrecision) -> tuple[int, int, int]:
    """Return the bytes a parameter of weights, gradients and master weights take (ZeRO, section 3.1)."""
    return (2, 2, 4) if precision in {"bf16", "fp16"} else (4, 4, 0)


def states(
    trained: float,
    precision: MixedPrecision = "bf16",
    optimizer: Optimizer = "adamw",
    sharding: Sharding = "none",
    world: int = 1,
    frozen_bytes: float = 0.0,
    adafactor_matrix: tuple[int, int] = (0, 0),
    nodes: int = 1,
) -> States:
    """Return the model states on each of `world` devices (ZeRO, figure 1), as many in each of `nodes`.

    `trained` counts parameters that get gradients; `frozen_bytes` are weights that get none, as stored.
    """
    weights, gradients, master = weight_bytes(precision)
    traits = SHARDINGS[sharding]
    share = traits.weights, traits.gradients, traits.optimizer_state
    sharers = world // nodes if traits.within_node else world
    divisor = [sharers if shared else 1 for shared in share]
    state = state_bytes(optimizer, *adafactor_matrix)
    return States(
        parameters=(weights * trained + frozen_bytes) / divisor[0],
        gradients=gradients * trained / divisor[1],
        optimizer_state=state * trained / divisor[2],
        master_weights=master * trained / divisor[2],
    )


def quantized_bytes(parameters: float, double: bool = True) -> float:
    """Return the bytes of 4-bit weights with their scales (QLoRA): 4.127 bits each with double quantization."""
    scale = 1 + 4 / BLOCK_SCALES if double else 4
    return parameters * (0.5 + scale / BLOCK_4BIT)


def lora_parameters(rank: int, matrices: tuple[tuple[int, int], ...], copies: int = 1) -> int:
    """Return the parameters of adapters on matrices of (inputs, outputs): rank x (inputs + outputs) each (LoRA)."""
    return copies * sum(rank * (inputs + outputs) for inputs, outputs in matrices)


class ZeroEstimate(NamedTuple):
    """Bytes on each device, and on each host, as DeepSpeed's own estimator counts them."""

    device: float
    host: float


HOST_BUFFERS = 1.5
"""DeepSpeed's factor for buffers on the host (`additional_buffer_factor`)."""


def deepspeed(
    parameters: float,
    stage: Literal[2, 3],
    devices_per_node: int,
    nodes: int = 1,
    largest_layer: float = 0.0,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    zero_init: bool = True,
) -> ZeroEstimate:
    """Return what DeepSpeed's documentation states for mixed precision with Adam (DeepSpeed).

    Stage 2 counts 16-bit weights and gradients in full, and 16 bytes a parameter shared out; stage 3 shares out 18
    and gathers one layer at a time, of `largest_layer` parameters, in float32.
    """
    world = devices_per_node * nodes
    if stage == 2:
        if offload_optimizer:
            return ZeroEstimate(2 * parameters, parameters * max(4 * world, 16) * HOST_BUFFERS)
        shared = 16 * parameters / world
        return ZeroEstimate(4 * parameters + shared, parameters * 4 * devices_per_node * HOST_BUFFERS)
    layer = 4 * largest_layer
    per_node = 1 / nodes
    unsharded_init = parameters * 4 * devices_per_node * HOST_BUFFERS
    if not offload_optimizer:
        host = largest_layer * 4 * devices_per_node * HOST_BUFFERS if zero_init else unsharded_init
        return ZeroEstimate(layer + 18 * parameters / world, host)
    kept = 18 if offload_parameters else 16
    host = parameters * kept * per_node * HOST_BUFFERS
    if not zero_init:
        host = max(unsharded_init, host)
    return ZeroEstimate(layer + (0 if offload_parameters else 2 * parameters / world), host)


class Setup(Frozen):
    """One way to train it."""

    seq_len: Annotated[int, Field(ge=1)]
    micro_batch: Annotated[int, Field(ge=1)] = 1
    """Sequences a device."""
    precision: MixedPrecision = "bf16"
    optimizer: Optimizer = "adamw"
    sharding: Sharding = "none"
    world: Annotated[int, Field(ge=1)] = 1
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    """Ranks that share one model's matrices; `world` counts groups of them."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Machines that the devices are in, as many in each: what `hsdp` shards inside of."""
    checkpointing: Literal["none", "selective", "full"] = "none"
    """`selective` recomputes the attention's scores alone, `full` all of a layer but its input."""
    optimizer_kernel: Literal["fused", "foreach"] = "fused"
    """Whether AdamW updates in place, or takes the roots of all second moments at once (foreach)."""
    offload: Literal["none", "optimizer", "full"] = "none"
    """What lives off the device: nothing, optimizer state and master weights, or parameters and gradients too."""
    offload_to: Literal["host", "disk"] = "host"
    attention: Literal["flash", "eager"] = "flash"
    dropout: bool = False
    fused_loss: bool = False
    """The loss makes no float32 copy of the logits, as flash-attn's cross-entropy does not."""
    trained: NonNegative | None = None
    """Parameters that get gradients; None for all. The others are frozen, and stored as `frozen_bits` says."""
    frozen_bits: Literal[4, 16, 32] = 16
    framework: NonNegative = 0
    """Bytes outside the tensors: the device's context, communication buffers, the matrix library's workspace."""


class ClosedFormEstimate(NamedTuple):
    """Bytes on one device at the peak, by component, and in host memory and on disk for each device."""

    parameters: float
    gradients: float
    optimizer_state: float
    master_weights: float
    activations: float
    logits: float
    temporary: float
    framework: float
    host: float
    disk: float = 0.0

    @property
    def device(self) -> float:
        """Return the bytes on the device: all but the host's and the disk's."""
        return sum(self) - self.host - self.disk


def layer_activations(architecture: Architecture, setup: Setup) -> float:
    """Return what one layer keeps for its backward pass, in bytes, for one micro-batch.

    Korthikanti's count, term by term, so that grouped-query attention, gated layers and experts have their own
    widths: with `heads x head_dim = hidden`, a width of 4 x hidden, dropout and 16 bits it is their
    s x b x h x (34 + 5 x heads x s / hidden). Tensor parallelism over t ranks divides what lies between the two
    matrices of a pair (their section 4.2.1: 10 + 24 / t). Not covered: norms that compute in float32 and
    keep that copy.
    """
    a, s = architecture, setup
    t = s.tensor_parallel
    element = 4 if s.precision == "fp32" else 2
    mask = 1 if s.dropout else 0
    queries, keys = a.heads * a.head_dim / t, a.kv_heads * a.head_dim / t
    attention = element * (a.hidden + 2 * queries + 2 * keys) + mask * a.hidden
    if s.attention == "flash":
        attention += 4 * a.heads / t  # log-sums of the rows (Flash)
    elif s.checkpointing != "selective":
        attention += a.heads / t * s.seq_len * (element + (mask + element if s.dropout else 0))
    width = a.intermediate * (4 if a.gated else 2) / t
    feed_forward = element * (a.hidden + width)
    if a.experts:
        feed_forward = a.experts_per_token * feed_forward + element * a.hidden + 4 * a.experts
    norms = 2 * element * a.hidden
    return s.micro_batch * s.seq_len * float(attention + feed_forward + mask * a.hidden + norms)


def activations(architecture: Architecture, setup: Setup) -> float:
    """Return what all layers keep, and with full checkpointing one layer's recomputed activations beside them."""
    layer = layer_activations(architecture, setup)
    if setup.checkpointing != "full":
        return architecture.layers * layer
    element = 4 if setup.precision == "fp32" else 2
    inputs = element * setup.micro_batch * setup.seq_len * architecture.hidden * architecture.layers
    return inputs + layer


def logits_bytes(architecture: Architecture, setup: Setup) -> float:
    """Return the logits at the loss: as computed, in float32 for the loss, and their log-probabilities' gradient.

    A fused loss keeps the first, and makes their gradient of the same type.
    """
    element = 4 if setup.precision == "fp32" else 2
    copies = 2 * element if setup.fused_loss else 4 + 4 + (element if element != 4 else 0)
    return float(setup.micro_batch * setup.seq_len * architecture.vocab * copies)


def estimate(architecture: Architecture, setup: Setup) -> ClosedFormEstimate:
    """Return the peak of a training step, by component.

    The peak is taken at the loss (logits and all activations alive), or during the optimizer's step, whichever
    is larger in its own temporaries; gradients are counted in full at either, as they are from the second
    micro-step on. Under sharding of parameters, one layer is gathered at a time and its gradients with it.
    """
    everything = architecture.slice_parameters(setup.tensor_parallel)
    trained = everything if setup.trained is None else setup.trained / setup.tensor_parallel
    frozen = max(0, everything - trained) if setup.trained is not None else 0
    stored = quantized_bytes(frozen) if setup.frozen_bits == 4 else frozen * setup.frozen_bits / 8
    kept = states(
        trained, setup.precision, setup.optimizer, setup.sharding, setup.world, stored,
        (architecture.hidden, architecture.intermediate), setup.nodes,
    )  # fmt: skip
    weights, gradients, _ = weight_bytes(setup.precision)
    temporary = 0.0
    gathered = architecture.layer_parameters() / setup.tensor_parallel * (weights + gradients)
    if SHARDINGS[setup.sharding].weights or setup.offload == "full":
        temporary += gathered
    if setup.precision == "autocast" and not temporary:
        temporary += 2 * everything  # the cast copies that autocast keeps until the backward pass
    host = 0.0
    if setup.offload != "none":
        host += kept.optimizer_state + kept.master_weights
        kept = kept._replace(optimizer_state=0.0, master_weights=0.0)
    if setup.offload == "full":
        host += kept.parameters + kept.gradients
        kept = kept._replace(parameters=0.0, gradients=0.0)
    living = activations(architecture, setup)
    logits = logits_bytes(architecture, setup)
    roots = 0.0
    if setup.optimizer == "adamw" and setup.optimizer_kernel == "foreach" and setup.offload == "none":
        roots = kept.optimizer_state / 2
    if roots > living + logits + temporary:  # the peak is in the optimizer's step, when these are gone
        living, logits, temporary = 0.0, 0.0, roots
    return ClosedFormEstimate(
        *kept,
        activations=living,
        logits=logits,
        temporary=temporary,
        framework=float(setup.framework),
        host=host if setup.offload_to == "host" else 0.0,
        disk=host if setup.offload_to == "disk" else 0.0,
    )
