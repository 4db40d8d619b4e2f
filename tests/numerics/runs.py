"""Three optimizer steps of a tiny model under a candidate, and what they gave: losses, gradients, weights."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from autotune.worker.build.assembly import assemble
from autotune.worker.measuring.memory_breakdown import local
from tests.data.requests import OWN, family, request

MODELS = {name: family(name) for name in ("gpt2", "llama", "mixtral", "bert", "t5", "vit")} | {"own": OWN}
CHECKPOINTED = {
    how: {"checkpointing": how} for how in ("none", "selective", "alternate", "full", "offloaded")
} | {
    f"one-{how}": {"checkpointing": how, "checkpointed_blocks": 1} for how in ("selective", "full", "offloaded")
}  # fmt: skip
"""Ways of checkpointing, of all blocks and of the first one, by what tests call them."""
STEPS, MICRO_BATCH = 3, 4
MAPPED, COPIED = True, False


@dataclass(frozen=True)
class Run:
    losses: list[float]
    gradients: list[list[Tensor]]
    """Of every parameter that has one, after each backward pass."""
    weights: tuple[Tensor, ...] = ()
    """Of every parameter, after the last step."""

    def __eq__(self, other):
        pairs = [pair for ours, theirs in zip(self.gradients, other.gradients, strict=True)
                 for pair in zip(ours, theirs, strict=True)]  # fmt: skip
        pairs += zip(self.weights, other.weights, strict=True)
        return self.losses == other.losses and all(torch.equal(ours, theirs) for ours, theirs in pairs)

    def gradient_error(self, other):
        """Return the largest norm of the difference of all gradients of a step, relative to their norm."""
        return max(
            float(norm([a - b for a, b in zip(ours, theirs, strict=True)]) / norm(theirs))
            for ours, theirs in zip(self.gradients, other.gradients, strict=True)
        )


def norm(tensors):
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


def gradients_of(training):
    return [local(p.grad).clone() for p in training.model.parameters() if p.grad is not None]


def train(model, files=None, check=None, **candidate):
    """Train three steps; `check` is called with the training before it is closed."""
    with TemporaryDirectory() as folder:
        spec = MODELS[model] if isinstance(model, str) else model
        training = assemble(request(spec, Path(folder), **candidate), files=files)
        losses, gradients = [], []
        for step in range(STEPS):
            loss = training.loss(training.place(training.batch(step, MICRO_BATCH)))
            loss.backward()
            losses.append(loss.item())
            gradients.append(gradients_of(training))
            training.optimizer.step()
            training.optimizer.zero_grad()
        if check is not None:
            check(training)
        weights = tuple(local(parameter).detach().clone() for parameter in training.model.parameters())
        training.close()
    return Run(losses, gradients, weights)


@cache
def plain(model, precision, optimizer="adamw"):
    return train(model, precision=precision, optimizer=optimizer)


def accumulated(model, steps, micro_batch, files=None, **candidate):
    """Return loss and gradients of one global step of `steps` micro-steps, without dropout."""
    with TemporaryDirectory() as folder:
        training = assemble(request(MODELS[model], Path(folder), precision="fp32", **candidate), files=files)
        training.model.eval()  # dropout draws one mask for each batch, so it differs between splits of a batch
        total = 0.0
        for step in range(steps):
            loss = training.loss(training.place(training.batch(step, micro_batch))) / steps
            loss.backward()
            total += loss.item()
        gradients = gradients_of(training)
        training.close()
    return Run([total], [gradients])
