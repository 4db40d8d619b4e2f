"""Lightning takes what was exported, and trains as it was measured."""

import inspect
import json

import pytest

from autotune.exports import export
from autotune.exports.check import check
from autotune.exports.lightning import FSDP_ARGUMENTS
from tests.configurations import make_best
from tests.consumers.conftest import PARAMETERS, STEPS


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_lightnings_trainer_takes_every_argument(precision, exported):
    import lightning

    best = make_best(steps=5, precision=precision)
    arguments = json.loads((exported(best, "lightning") / "trainer.json").read_text())
    trainer = lightning.Trainer(**arguments)
    assert (trainer.accumulate_grad_batches, trainer.world_size) == (5, 1)
    assert trainer.precision == arguments["precision"]
    with pytest.raises(TypeError):
        lightning.Trainer(**arguments, accumulate_grad_batch=5)


@pytest.mark.parametrize(
    ("gpus", "candidate"),
    [
        (1, {"precision": "bf16", "checkpointing": "full"}),
        (2, {"precision": "bf16", "sharding": "ddp"}),
        (2, {"precision": "bf16", "sharding": "fsdp2"}),
    ],
    ids=["one", "ddp", "fsdp2"],
)
def test_lightning_trains_as_a_run_measured(gpus, candidate, best_of, train):
    best = best_of(gpus=gpus, **candidate)
    trained = train(best, "lightning", "--steps", str(STEPS))
    sharded = candidate.get("sharding") == "fsdp2"
    trained.check(best, groups_end=not sharded)
    assert trained.dtypes() == {"torch.bfloat16" if sharded else "torch.float32"}, "gathered, or autocast"
    for rank in trained.ranks:
        for step in rank["steps"]:
            assert (step["optimizer"], step["fused"], step["dtypes"]) == ("AdamW", True, ["torch.float32"])
            assert step["sharded"] == sharded
            assert (step["numbers"] < PARAMETERS * 0.6) if sharded else (step["numbers"] == PARAMETERS)
        if candidate.get("sharding") == "ddp":
            assert "DistributedDataParallel" in rank["wrappers"]


def test_every_argument_of_fsdp_strategy_that_sets_memory_has_its_place_or_a_reason():
    from lightning.pytorch.strategies import FSDPStrategy, ParallelStrategy
    from torch.distributed.fsdp import FullyShardedDataParallel

    def arguments(of):
        return set(inspect.signature(of.__init__).parameters)

    both = arguments(FSDPStrategy) | arguments(FullyShardedDataParallel)
    of_others = arguments(ParallelStrategy) | {
        "process_group_backend", "timeout", "precision_plugin", "kwargs",  # of any strategy
        "module", "process_group", "device_id", "sync_module_states", "param_init_fn",  # how ranks get a module
        "ignored_modules", "ignored_states",  # none is left out
    }  # fmt: skip
    assert both - of_others == set(FSDP_ARGUMENTS)


def test_two_steps_through_lightning_are_compared_with_the_record(best_of):
    """As `autotune export --check` does it."""
    best = best_of(precision="bf16", checkpointing="full")
    found = check(best, "lightning", export(best, "lightning"))
    assert found.judged
    assert found.tokens_per_second > 0
    # A tiny model, whose record is below what libraries differ by from one process to another.
    assert 0 < found.peak < best.memory.allocated + (32 << 20)
