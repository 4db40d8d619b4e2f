"""What the device's memory holds: parameters, gradients, optimizer state, and the rest."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from autotune.outcome import Breakdown, Phase
from autotune.units import format_bytes
from autotune.worker.training import Training


def bytes_on(device: torch.device, tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of the distinct storages on `device` itself.

    Not on the device: what lives elsewhere, in pinned host memory, or in a file mapped into memory.
    """
    storages: dict[int, int] = {}
    for tensor in tensors:
        if tensor is None:
            continue
        own = local(tensor)
        if own.device.type != device.type:
            continue
        storage = own.untyped_storage()
        if storage.nbytes() and storage.filename is None:
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of a distributed tensor; any other tensor as it is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():  # else it is a view for autograd to follow, which an operator makes
        return tensor.to_local()


def parameter_bytes(training: Training) -> int:
    """Return the bytes of parameters and buffers on the device."""
    own = training.model.parameters() if training.shards is None else training.shards()
    return bytes_on(training.device, [*own, *training.model.buffers()])


def gradient_bytes(training: Training) -> int:
    """Return the bytes of gradients on the device."""
    if training.gradients is not None:
        return bytes_on(training.device, training.gradients())
    return bytes_on(training.device, (parameter.grad for parameter in training.model.parameters()))


def state_bytes(training: Training) -> int:
    """Return the bytes of optimizer state on the device."""
    return bytes_on(training.device, training.optimizer.state_tensors())


class Observer:
    """Looks at the gradients as the phases of one step end; hand its `look` to `Phases.on_end`."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.in_forward = 0
        """Gradient bytes alive at the end of the last forward: those of the micro-steps before."""
        self.in_backward = 0
        """Gradient bytes alive at the end of the last backward: all of them."""

    def look(self, phase: Phase) -> None:
        """Count the gradients' bytes at the end of a phase."""
        if phase == "forward":
            self.in_forward = gradient_bytes(self._training)
        elif phase == "backward":
            self.in_backward = gradient_bytes(self._training)


def breakdown(training: Training, observer: Observer, forward_end: int, peak: int) -> Breakdown:
    """Split a peak (bytes) by what holds it; the five parts add up to it.

    Parameters, gradients and optimizer state are counted in full. Activations are what was alive at the end
    of forward (`forward_end`) beyond them, but no more than the peak leaves: without accumulation gradients
    grow while activations shrink, and the two are never whole at once. Call it after a step with optimizer
    state.
    """
    parameters, state = parameter_bytes(training), state_bytes(training)
    held = parameters + observer.in_backward + state
    activations = forward_end - (parameters + observer.in_forward + state)
    activations = max(0, min(activations, peak - held))
    return Breakdown(
        parameters=parameters,
        gradients=observer.in_backward,
        optimizer_state=state,
        activations=activations,
        other=max(0, peak - held - activations),
    )


def summary(training: Training | None, anonymous: int, free: int | None) -> str:
    """Return a page for people on what a CPU process held when memory ran out."""
    lines = [f"anonymous memory of the process  {format_bytes(anonymous)}"]
    if free is not None:
        lines.append(f"free below the limit             {format_bytes(free)}")
    if training is None:
        lines.append("the model was not built yet")
    else:
        lines += [
            f"parameters and buffers           {format_bytes(parameter_bytes(training))}",
            f"gradients                        {format_bytes(gradient_bytes(training))}",
            f"optimizer state                  {format_bytes(state_bytes(training))}",
        ]
    return "\n".join(lines) + "\n"
