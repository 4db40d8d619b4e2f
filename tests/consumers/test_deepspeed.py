"""DeepSpeed loads what was exported, and trains as it was measured."""

import json

import pytest

from tests.configurations import make_best
from tests.consumers.conftest import PARAMETERS, STEPS

CASES = [
    {"sharding": "zero1", "precision": "fp32"},
    {"sharding": "zero2"},
    {"sharding": "zero3", "offload": "optimizer"},
    {"sharding": "zero3", "offload": "full", "checkpointing": "full"},
]


class TwoRanks:
    """Stands for a process group, which DeepSpeed's configuration asks for the number of ranks."""

    @staticmethod
    def get_data_parallel_world_size():
        return 2


@pytest.mark.parametrize("candidate", CASES, ids=lambda case: "-".join(case.values()))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_deepspeed_takes_every_key_as_it_is_written(candidate, device, exported, monkeypatch):
    from deepspeed import comm
    from deepspeed.runtime import constants
    from deepspeed.runtime.activation_checkpointing import config as checkpointing
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    best = make_best(device=device, gpus=2, steps=3, engine="deepspeed", **candidate)
    text = (exported(best, "deepspeed") / "deepspeed.json").read_text()
    assert "auto" not in text, "only transformers resolves it"
    written = json.loads(text)
    monkeypatch.setattr(comm, "get_rank", lambda *_: 0)
    config = DeepSpeedConfig(json.loads(text), mpu=TwoRanks())
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu) == (12, 2)
    assert config.gradient_accumulation_steps == 3
    assert config.bfloat16_config.enabled == (best.candidate.precision == "bf16")
    zero = {
        **{field.alias or name: name for name, field in DeepSpeedZeroConfig.model_fields.items()},
        **{name: name for name in DeepSpeedZeroConfig.model_fields},
    }
    for key, value in written["zero_optimization"].items():
        read = getattr(config.zero_config, zero[key])
        if isinstance(value, dict):
            assert getattr(read.device, "value", read.device) == value["device"]
            assert read.pin_memory == value["pin_memory"]
        else:
            assert read == value, key
    # DeepSpeed looks at neither of these for a key that it does not know.
    assert set(written["activation_checkpointing"]) == set(checkpointing.ACT_CHKPT_DEFAULT)
    names = {value for name, value in vars(constants).items() if isinstance(value, str)}
    known = {*names, "zero_optimization", "activation_checkpointing", "zero_allow_untested_optimizer"}
    assert {key for key in written if key not in known} == set()


@pytest.mark.parametrize(
    "candidate",
    [
        {"sharding": "zero2", "precision": "bf16", "checkpointing": "full"},
        {"sharding": "zero3", "precision": "fp32"},
    ],
    ids=lambda case: "-".join(case.values()),
)
def test_two_ranks_train_under_deepspeed_as_a_run_measured(candidate, best_of, train):
    best = best_of(gpus=2, engine="deepspeed", **candidate)
    trained = train(best, "deepspeed", "--steps", str(STEPS))
    trained.check(best, groups_end=candidate["sharding"] != "zero3")
    assert trained.dtypes() == {"torch.bfloat16" if candidate["precision"] == "bf16" else "torch.float32"}
    for rank in trained.ranks:
        assert "DeepSpeedEngine" in rank["wrappers"]
        for step in rank["steps"]:
            assert step["optimizer"] == "AdamW"
            assert step["dtypes"] == ["torch.float32"], "masters, in the optimizer's shard"
            assert step["numbers"] <= PARAMETERS * 0.6, "each rank updates a share"
