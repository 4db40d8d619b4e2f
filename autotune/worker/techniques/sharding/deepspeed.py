"""DeepSpeed's engine: ZeRO-1, 2 and 3 with its own flat buffers, hooks and collectives, and torch's optimizer inside.

The optimizer is the one that other candidates have, over DeepSpeed's flat shards, and so nothing has to be compiled:
neither DeepSpeed's own Adam nor its collectives through shared memory, which gloo's replace on a CPU. Optimizer
offload is DeepSpeed's: state, masters and the update move to host memory, which on the cpu device is the same memory.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autotune.candidate import Candidate
from autotune.techniques.deepspeed_config import deepspeed_settings
from autotune.techniques.sharding import SHARDINGS
from autotune.worker.techniques.optimizer import MakeOptimizer, state_tensors

_SHARED_MEMORY = "deepspeed_shm_comm"
"""DeepSpeed's name of its collectives for CPUs: a minute of compiling in every fresh place, and a compiler's memory."""


class DeepSpeedEngine:
    """A model under DeepSpeed, with the contracts of a step's optimizer and of its reduction.

    The process group exists. Gradients are averaged over the ranks, and losses must come divided by the number of
    micro-steps. ZeRO-2 and 3 reduce in every micro-step, ZeRO-1 in the last.
    """

    def __init__(
        self, model: nn.Module, make: MakeOptimizer, candidate: Candidate, width: int, device: torch.device
    ) -> None:
        """Take a model, what makes its optimizer, and the width of its hidden states; 0 where that is not known."""
        deepspeed = importlib.import_module("deepspeed")
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False
        # DeepSpeed takes the device of this number, which for a probe is the only one it sees.
        os.environ["LOCAL_RANK"] = str(device.index or 0)
        optimizer = make(parameter for parameter in model.parameters() if parameter.requires_grad)
        config = {
            **deepspeed_settings(candidate, width, pin_memory=device.type == "cuda"),
            "train_micro_batch_size_per_gpu": candidate.micro_batch,
            "gradient_accumulation_steps": 1,  # `reduction` says when
            "gradient_clipping": 0.0,  # DeepSpeed clips to 1 where nothing is said
            "steps_per_print": 1 << 60,
        }
        self._engine, self._zero, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=config, dist_init_required=False
        )
        self._stage = SHARDINGS[candidate.sharding].stage
        self._model = model

    def forward(self, **batch: Any) -> object:
        """Run the model's forward pass."""
        return self._engine(**batch)

    def reduction(self, last: bool) -> AbstractContextManager[object]:
        """Say whether the coming micro-step ends a global step; DeepSpeed's hooks do the rest."""
        self._engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def step(self) -> None:
        """Update this rank's shard and gather the parameters; the gradients go with it."""
        self._engine.step()

    def zero_grad(self) -> None:
        """Do nothing: `step` has dropped the gradients."""

    def state_tensors(self) -> Iterator[Tensor]:
        """Return the optimizer's state and the fp32 copy of the parameters in this rank's shard."""
        yield from state_tensors([self._zero.optimizer])
        yield from self._masters()

    def shards(self) -> Iterator[Tensor]:
        """Return what this rank keeps of the parameters between steps, and what of them is gathered now."""
        for parameter in self._model.parameters():
            yield parameter.data
            if self._stage == 3:
                yield parameter.ds_tensor

    def gradients(self) -> Iterator[Tensor]:
        """Return the reduced gradients of this rank's shard."""
        if self._stage == 3:
            parts = self._zero._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition.values()
            yield from (part for part in parts if part.numel())
        else:
            for group in self._zero.averaged_gradients.values():
                yield from group or ()
        yield from (master.grad for master in self._masters() if master.grad is not None)

    def close(self) -> None:
        """Take DeepSpeed's hooks off the model."""
        self._engine.destroy()

    def _masters(self) -> Iterable[Tensor]:
        name = "fp32_partitioned_groups_flat" if self._stage == 3 else "single_partition_of_fp32_groups"
        masters: Iterable[Tensor] = getattr(self._zero, name)
        return masters
