"""TRL reads what was exported, and trains as it was measured but for its loss."""

import yaml

from autotune.exports import NOT_PROVEN
from tests.configurations import make_best
from tests.consumers.conftest import PARAMETERS, STEPS


def test_trl_takes_every_key_as_it_is_written(exported, monkeypatch):
    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

    best = make_best(micro_batch=4, steps=5, checkpointing="full", precision="bf16-pure", num_workers=2)
    folder = exported(best, "trl")
    monkeypatch.chdir(folder)
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    script, arguments, model = parser.parse_args_and_config(args=["--config", "sft.yaml"])
    for key, value in yaml.safe_load((folder / "sft.yaml").read_text()).items():
        read = next(getattr(part, key) for part in (arguments, model, script) if hasattr(part, key))
        assert getattr(read, "value", read) == ([] if value == "none" and key == "report_to" else value), key
    assert (arguments.bf16, model.dtype) == (False, "bfloat16")


def test_trl_trains_as_a_run_measured(best_of, train, tmp_path):
    best = best_of(precision="bf16", checkpointing="full")
    trained = train(best, "trl", "--max_steps", str(STEPS))
    trained.check(best)
    assert trained.dtypes() == {"torch.float32"}
    for step in trained.ranks[0]["steps"]:
        assert (step["optimizer"], step["fused"], step["dtypes"]) == ("AdamW", True, ["torch.float32"])
        assert step["numbers"] == PARAMETERS
        assert not step["sharded"]
    assert "tiles" in (tmp_path / "trl" / NOT_PROVEN).read_text()
