"""A whole `Best` in one call, for the tests of what is made from it."""

from pathlib import Path

from autotune.accumulation import accumulate
from autotune.candidate import Candidate
from autotune.models.resolve import resolve
from autotune.outcome import Breakdown, Memory, Sample, StepTiming
from autotune.run.best import Best, BestDevice
from autotune.specs import ModelFacts, ModelSpec

SAMPLE = Sample(mean=0.1, half_width=0.002, count=9)


def make_best(
    *, device="cpu", gpus=1, steps=3, seq_len=32, model=None, block_class=None, variables=None, **candidate
) -> Best:
    """Return a best configuration of `tiny-gpt2` (or of another model) with `steps` accumulation steps.

    `gpus` take samples of their own, each together with those that share its model under tensor parallelism.
    """
    chosen = Candidate(**{"micro_batch": 2, **candidate})
    target = chosen.micro_batch * seq_len * gpus * steps
    ranks = gpus * chosen.tensor_parallel
    return Best(
        run="20260102-tiny-gpt2",
        created="2026-01-02T03:04:05+00:00",
        evidence="measured",
        candidate=chosen,
        accumulation=accumulate(target, chosen.micro_batch, seq_len, gpus),
        seq_len=seq_len,
        gpus=ranks,
        headroom=0.05,
        tokens_per_second=2000.0,
        tokens_per_second_interval=1e-05,
        seconds_per_global_step=0.4,
        attention="sdpa",
        memory=Memory(
            allocated=100, reserved=200, device_peak=300, budget=3 * 2**30, baseline=10,
            breakdown=Breakdown(parameters=1, gradients=2, optimizer_state=3, activations=4, other=5),
        ),
        timing=StepTiming(micro_step=SAMPLE, last_micro_step=SAMPLE, optimizer_step=SAMPLE),
        notes=("a note: with a colon, and # no comment",),
        device=BestDevice(name="A device", kind=device, torch_name="cuda:0" if device == "cuda" else "cpu", number=1),
        variables=variables or {},
        environment={"python": "3.11", "torch": "2.13.0"},
        facts=ModelFacts(
            task="causal-lm", model_class="GPT2LMHeadModel", parameters=149_248, trainable_parameters=149_248,
            active_parameters=149_248, layers=2, hidden=64, block_class="GPT2Block", blocks=2,
            tokens_per_sample=seq_len, torch_version="2.13.0", transformers_version="5.23.0",
        ),
        model=model or resolve("tiny-gpt2", base=Path(), block_class=block_class),
    )  # fmt: skip


def function_model() -> ModelSpec:
    """Return a model that is a function of the user's own."""
    return ModelSpec(name="mine:build", source="function", path="/somewhere")
