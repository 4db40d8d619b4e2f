"""What torchtitan 0.3 trains: `--module titan_config --config tuned`. launch.sh starts it.

Sizes are those of config.json, all else that sets memory is from titan.json. Data, learning rate, its schedule and
checkpoints are yours to choose.
"""

import json
from pathlib import Path

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

FOLDER = Path(__file__).parent
MODEL = json.loads((FOLDER / "config.json").read_text())
TUNED = json.loads((FOLDER / "titan.json").read_text())
CHECKPOINTING = {"FullAC": FullAC, "SelectiveAC": SelectiveAC}
SIXTEENTHS = 16
"""Chunks of the sequence for which logits are made at a time, as they were measured."""


def tuned() -> Trainer.Config:
    """Return the configuration that was measured, in torchtitan's words."""
    loss = CrossEntropyLoss.Config(global_vocab_size=MODEL["vocab_size"])
    if TUNED["loss"] == "chunked":
        loss = ChunkedLossWrapper.Config(loss_fn=loss, num_chunks=SIXTEENTHS)
    checkpointing = CHECKPOINTING.get(TUNED["checkpointing"])
    optimizer = default_adamw(lr=2e-4, weight_decay=0.01, betas=(0.9, 0.999))
    optimizer.implementation = TUNED["implementation"]
    return Trainer.Config(
        loss=loss,
        hf_assets_path=str(FOLDER / "model"),
        dump_folder=str(FOLDER / "outputs"),
        model_spec=model(),
        optimizer=optimizer,
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0),
        training=TrainingConfig(
            local_batch_size=TUNED["local_batch_size"],
            global_batch_size=TUNED["global_batch_size"],
            seq_len=TUNED["seq_len"],
            steps=10,
            max_norm=1.0,
            dtype=TUNED["dtype"],
            mixed_precision_param=TUNED["mixed_precision_param"],
            mixed_precision_reduce="float32",
            enable_cpu_offload=False,
            disable_cuda_graphs=TUNED["disable_cuda_graphs"],
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=TUNED["data_parallel_replicate_degree"],
            data_parallel_shard_degree=TUNED["data_parallel_shard_degree"],
            fsdp_reshard_after_forward=TUNED["fsdp_reshard_after_forward"],
            tensor_parallel_degree=1,
            pipeline_parallel_degree=1,
            context_parallel_degree=1,
        ),
        activation_checkpoint=checkpointing.Config() if checkpointing else None,
        compile=CompileConfig(enable=False),
        # The rows of make_inputs.py: torchtitan knows local text by this name.
        dataloader=HuggingFaceTextDataLoader.Config(
            dataset="c4_test",
            dataset_path=str(FOLDER / "data"),
            num_workers=TUNED["num_workers"],
            prefetch_factor=TUNED["prefetch_factor"],
            pin_memory=TUNED["pin_memory"],
        ),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=False),
    )


def model() -> ModelSpec:
    """Return torchtitan's Llama of the sizes in config.json."""
    width, heads, words = MODEL["hidden_size"], MODEL["num_attention_heads"], MODEL["vocab_size"]
    tied = bool(MODEL.get("tie_word_embeddings"))
    position = MODEL.get("rope_parameters") or MODEL.get("rope_scaling") or {}
    rope = ComplexRoPE.Config(
        dim=width // heads,
        max_seq_len=max(TUNED["seq_len"], MODEL.get("max_position_embeddings", 0)),
        theta=MODEL.get("rope_theta") or position.get("rope_theta", 10000.0),
        scaling="llama" if position.get("rope_type") == "llama3" else "none",
    )
    config = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=words,
        enable_weight_tying=tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=words,
            embedding_dim=width,
            param_init=llama3._EMBEDDING_SKIP_INIT if tied else llama3._EMBEDDING_INIT,
        ),
        norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=width, out_features=words, param_init=llama3._output_linear_init(width)
        ),
        layers=llama3._build_llama3_layers(
            n_layers=MODEL["num_hidden_layers"],
            dim=width,
            n_heads=heads,
            n_kv_heads=MODEL.get("num_key_value_heads") or heads,
            hidden_dim=MODEL["intermediate_size"],
            rope=rope,
            attn_backend=TUNED["attention"],
        ),
    )
    # What the spec of any of its sizes says beside the sizes.
    known = llama3.model_registry("debugmodel", attn_backend=TUNED["attention"])
    known.flavor, known.model = "tuned", config
    return known
