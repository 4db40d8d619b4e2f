"""The arithmetic of the global batch: global = micro-batch x world size x accumulation steps."""

from __future__ import annotations

from pydantic import computed_field

from autotune.bounds import Count, MicroBatch, RankCount
from autotune.errors import InputError
from autotune.units import format_count
from autotune.validation import Frozen

ASSUMED_STEPS = 8
"""Micro-steps of a global step where no global batch says how many.

Several, because that is what a run comes to with any batch worth accumulating. Memory is the same from two on: then
gradients live through the forward of every micro-step but the first, which a single one spares."""


class Accumulation(Frozen):
    """How micro-batches add up to the global batch. All amounts in tokens, except where named samples."""

    micro_batch: MicroBatch
    """Samples per device and micro-step."""
    tokens_per_sample: Count
    world_size: RankCount
    """Devices that take samples of their own: all, or one of each group that shares a model (tensor parallelism)."""
    steps: Count
    """Micro-steps per optimizer step."""
    target: Count
    """The global batch that was asked for, in tokens."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def effective(self) -> int:
        """The global batch that results, in tokens."""
        return self.micro_batch * self.tokens_per_sample * self.world_size * self.steps

    @computed_field  # type: ignore[prop-decorator]
    @property
    def difference(self) -> int:
        """Effective minus target, in tokens; never negative."""
        return self.effective - self.target

    def equation(self) -> str:
        """Return the arithmetic written out: `4,000,000 = 4,000 x 8 x 125`."""
        per_device = self.micro_batch * self.tokens_per_sample
        factors = (self.effective, per_device, self.world_size, self.steps)
        effective, micro, world, steps = (format_count(factor) for factor in factors)
        return f"{effective} = {micro} x {world} x {steps}"


def accumulate(
    target: int, micro_batch: int, tokens_per_sample: int, world_size: int = 1, exact: bool = False
) -> Accumulation:
    """Return the accumulation that reaches `target` tokens: the smallest number of steps at or above it.

    With `exact`, a target that is not divisible raises InputError instead of being rounded up.
    """
    per_step = micro_batch * tokens_per_sample * world_size
    steps = max(1, -(-target // per_step))
    result = Accumulation(
        micro_batch=micro_batch, tokens_per_sample=tokens_per_sample, world_size=world_size, steps=steps,
        target=target,
    )  # fmt: skip
    if exact and result.difference:
        raise InputError(
            f"a global batch of {format_count(target)} tokens is not a multiple of micro-batch x world size "
            f"({format_count(per_step)} tokens); the nearest above is {format_count(result.effective)}. "
            "Drop --exact to accept it, or change the target",
            about="target_global_batch",
        )
    return result


def largest_micro_batch(target: int, tokens_per_sample: int, world_size: int = 1, exact: bool = False) -> int:
    """Return the largest micro-batch (samples) that the target has use for: it makes up the batch in one step.

    With `exact` it does not exceed the target. Raises InputError when even one sample on each device does, or
    when with `exact` no micro-batch meets the target.
    """
    per_sample = tokens_per_sample * world_size
    if target < per_sample:
        raise InputError(
            f"the global batch of {format_count(target)} tokens is smaller than one sequence of "
            f"{format_count(tokens_per_sample)} tokens on each of {world_size} device(s); raise "
            "--target-global-batch or lower --seq-len or --gpus",
            about="target_global_batch",
        )
    if exact:
        accumulate(target, 1, tokens_per_sample, world_size, exact=True)
    return target // per_sample if exact else -(-target // per_sample)


def is_balanced(target: int, micro_batch: int, tokens_per_sample: int, world_size: int = 1) -> bool:
    """Tell whether no smaller micro-batch makes up the target in as few steps.

    One that is not balanced takes more memory and time for nothing: 62 samples need two steps for a batch of
    63, and so do 32.
    """
    per_sample = tokens_per_sample * world_size
    steps = -(-target // (micro_batch * per_sample))
    return micro_batch == -(-target // (steps * per_sample))
