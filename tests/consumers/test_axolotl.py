"""axolotl reads what was exported. It trains in an environment of its own."""

import pytest
import yaml

from tests.configurations import make_best


@pytest.mark.parametrize(
    "options",
    [{"precision": "fp32"}, {"precision": "bf16", "checkpointing": "full", "num_workers": 2}],
    ids=["fp32", "bf16"],
)
def test_axolotl_takes_every_key_as_it_is_written(options, exported):
    from axolotl.utils.schemas.config import AxolotlConfigWCapabilities

    best = make_best(micro_batch=4, steps=5, **options)
    written = yaml.safe_load((exported(best, "axolotl") / "axolotl.yaml").read_text())
    # It ignores keys that it does not know.
    assert set(written) <= set(AxolotlConfigWCapabilities.model_fields)
    here = {"capabilities": {"bf16": True, "n_gpu": 1}, "env_capabilities": {"torch_version": "2.13.0"}}
    config = AxolotlConfigWCapabilities(**written, **here)
    for key, value in written.items():
        if key != "datasets":
            assert getattr(getattr(config, key), "value", getattr(config, key)) == value, key
    assert [(entry.path, entry.type) for entry in config.datasets] == [("data/train.jsonl", "completion")]
