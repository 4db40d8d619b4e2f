"""The bytes of real training on the CPU, as torch's own profiler counts them: what traces are compared with."""

import gc
from itertools import accumulate
from pathlib import Path

import torch

from autotune.candidate import Candidate
from autotune.models.resolve import resolve
from autotune.probe.protocol import ProbeRequest
from autotune.worker.build.assembly import assemble
from autotune.worker.measuring.steps import gradient_norm
from autotune.worker.techniques.mapped_files import MappedFiles

SEQ_LEN = 64


def request(model="tiny-gpt2", device="cpu", seq_len=SEQ_LEN, **fields):
    spec = resolve(model, base=Path(__file__).parent)
    return ProbeRequest(
        kind="train", model=spec, candidate=Candidate(**{"precision": "fp32", **fields}), seq_len=seq_len,
        accumulation_steps=1, device=device, budget=1 << 40, seed=0, sample_seconds=1, sample_steps=2, folder=".",
    )  # fmt: skip


def measured(probe, micro_steps=1):
    """Train two real steps and return the peak of all bytes that torch's CPU allocator handed out."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        training = assemble(probe)
        for step in range(2):
            losses = []
            for index in range(micro_steps):
                batch = training.batch(step * micro_steps + index, probe.candidate.micro_batch)
                with training.reduction(index == micro_steps - 1):
                    loss = training.loss(batch)
                    (loss / micro_steps).backward()
                losses.append(loss.detach())
                del loss, batch
            norm = gradient_norm(training)
            training.optimizer.step()
            training.optimizer.zero_grad()
            del norm, losses
        training.close()
    return peak(profiler)


def peak(profiler):
    """Return the highest level of the bytes that a profiler saw allocated and released."""
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events), default=0)


def taken(operator, *args):
    """Call an operator, and return the peak of what it allocates beside the tensors that it returns."""
    operator(*args)  # its first call compiles a kernel
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        result = operator(*args)
    results = [value for value in (result if isinstance(result, tuple) else (result,)) if value is not None]
    new = [value for value in results if not any(value is given for given in args)]
    return peak(profiler) - sum(value.untyped_storage().nbytes() for value in new)


def evaluated(probe, micro_batch):
    """Train a step, and return the peak of the bytes that an evaluation after it has."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        training = assemble(probe)
        training.loss(training.batch(0, probe.candidate.micro_batch)).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.model.eval()
        with torch.profiler.record_function("evaluation"), torch.no_grad():
            training.loss(training.batch(1, micro_batch))
        training.close()
    events = profiler.profiler.kineto_results.events()
    began = next(event.start_ns() for event in events if event.name() == "evaluation")
    memory = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    levels = accumulate(size for _, size in memory)
    return max(level for (at, _), level in zip(memory, levels, strict=True) if at >= began)


class InMemory(MappedFiles):
    """Files that torch's profiler does not count, as it does mapped ones."""

    def zeros_like(self, tensor):
        size = tensor.numel() * tensor.element_size()
        return torch.frombuffer(bytearray(size), dtype=tensor.dtype).view(tensor.shape)
