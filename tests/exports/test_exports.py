import json
import shlex
from pathlib import Path

import pytest
import yaml

from autotune.candidate import AXES, Candidate, examples
from autotune.errors import InputError
from autotune.exports import EXPORTERS, export, load_exporter
from autotune.exports.fields import CannotExport, refuse
from autotune.models.resolve import resolve
from autotune.techniques.check import axis_of
from tests.configurations import function_model, make_best

TARGETS = tuple(EXPORTERS)
BASES = {"deepspeed": {"engine": "deepspeed", "sharding": "zero2"}}
"""What a target needs to be the one for it, where that is not a candidate with all at its default."""


def best_for(target, **options):
    """Return a best configuration that a target can express, but for what is asked for beside it."""
    models = dict.fromkeys(("torchtitan", "litgpt"), resolve("tiny-llama", base=Path()))
    return make_best(**{"model": models.get(target), **BASES.get(target, {}), **options})


def refused(best, target):
    """Return the fields that a target refuses."""
    with pytest.raises(CannotExport) as refusal:
        export(best, target)
    return set(refusal.value.reasons)


def values(field):
    return (2, 5) if field == "micro_batch" else examples(field)


@pytest.mark.parametrize("field", Candidate.model_fields)
@pytest.mark.parametrize("target", TARGETS)
def test_every_value_of_every_field_changes_the_files_or_is_refused_by_name(target, field):
    """On a GPU, where no field is without effect."""
    exported, refusals = {}, []
    for value in values(field):
        try:
            exported[value] = json.dumps(
                export(best_for(target, device="cuda", **{field: value}), target), sort_keys=True
            )
        except CannotExport as refusal:
            refusals.append(set(refusal.reasons))
    assert all(names == {field} for names in refusals)
    assert exported, "the target cannot express any value of the field"
    assert len(set(exported.values())) == len(exported)


@pytest.mark.parametrize("field", AXES)
def test_what_a_target_does_not_name_is_refused_off_its_default_with_the_techniques_reason(field):
    best = make_best(device="cuda")
    refuse(best, "anywhere", {}, {})
    for value in examples(field):
        if value == axis_of(field).default:
            continue
        other = best.candidate.model_copy(update={field: value})
        with pytest.raises(CannotExport) as refusal:
            refuse(best.model_copy(update={"candidate": other}), "anywhere", {}, {})
        reason = axis_of(field).not_exported or "this target has no name for it"
        assert refusal.value.reasons[field] == f"{reason}. Use --to native"


@pytest.mark.parametrize("target", TARGETS)
def test_exporting_twice_gives_the_same_files(target):
    assert export(best_for(target), target) == export(best_for(target), target)


def test_an_unknown_target_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"did you mean accelerate\?"):
        load_exporter("acelerate")


@pytest.mark.parametrize("target", ["accelerate", "transformers"])
def test_every_reason_is_told_at_once(target):
    best = make_best(offload="optimizer", checkpointing="full", block_class="GPT2Block")
    with pytest.raises(
        CannotExport, match=f"cannot export to {target}: offload: it is autotune's own"
    ) as refusal:
        export(best, target)
    assert set(refusal.value.reasons) == {"offload", "checkpointing"}


@pytest.mark.parametrize("target", ["accelerate", "transformers"])
def test_a_model_of_the_users_own_goes_to_native_only(target):
    best = make_best(model=function_model())
    assert refused(best, target) == {"model"}
    assert "best.yaml" in export(best, "native")


def test_a_model_that_trains_in_part_goes_to_native_only():
    model = resolve("tiny-gpt2", base=Path()).model_copy(update={"train": ("lm_head",)})
    assert refused(make_best(model=model), "transformers") == {"model"}
    assert "lm_head" in export(make_best(model=model), "native")["best.yaml"]


def test_remote_code_goes_to_native_only(tmp_path):
    config = {"model_type": "new", "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    best = make_best(model=resolve(str(tmp_path), base=tmp_path, trust_remote_code=True))
    assert refused(best, "accelerate") == {"model"}


def test_native_starts_as_many_ranks_as_were_measured():
    for target in ("native", "accelerate", "transformers"):
        assert refused(make_best(gpus=8), target) == {"gpus"}
    for best in (make_best(gpus=8, sharding="zero2"), make_best(tensor_parallel=8)):
        launch = export(best, "native")["launch.sh"]
        assert "torch.distributed.run --standalone --nproc_per_node=8 train.py" in launch


def test_accelerate_on_eight_gpus():
    files = export(make_best(device="cuda", gpus=8, steps=125, sharding="ddp"), "accelerate")
    config = yaml.safe_load(files["accelerate_config.yaml"])
    assert (config["distributed_type"], config["num_processes"]) == ("MULTI_GPU", 8)
    assert (config["mixed_precision"], config["use_cpu"]) == ("bf16", False)
    assert json.loads(files["training.json"])["accumulation_steps"] == 125
    assert json.loads(files["settings.json"])["gpus"] == 8


def test_accelerate_on_one_processor_uses_the_cpu():
    config = yaml.safe_load(export(make_best(precision="fp32"), "accelerate")["accelerate_config.yaml"])
    assert (config["distributed_type"], config["num_processes"]) == ("NO", 1)
    assert (config["mixed_precision"], config["use_cpu"]) == ("no", True)


def test_accelerate_multiplies_in_8_bits_what_was_measured_so():
    files = export(make_best(device="cuda", precision="fp8"), "accelerate")
    assert yaml.safe_load(files["accelerate_config.yaml"])["mixed_precision"] == "fp8"
    assert json.loads(files["training.json"])["blocks"] == ["GPT2Block"]
    assert refused(make_best(device="cuda", precision="fp8"), "transformers") == {"precision"}


def test_transformers_arguments_hold_what_was_chosen():
    best = make_best(device="cuda", micro_batch=4, steps=7, checkpointing="full", precision="bf16")
    arguments = json.loads(export(best, "transformers")["training_arguments.json"])
    assert arguments["per_device_train_batch_size"] == 4
    assert arguments["gradient_accumulation_steps"] == 7
    assert arguments["bf16"] is True
    assert arguments["gradient_checkpointing"] is True
    assert arguments["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert arguments["optim"] == "adamw_torch_fused"
    assert arguments["use_cpu"] is False


def test_transformers_starts_one_process_a_gpu():
    best = make_best(device="cuda", gpus=8, engine="deepspeed", sharding="zero2")
    launch = export(best, "transformers")["launch.sh"]
    assert "torch.distributed.run --standalone --nproc_per_node=8 train.py" in launch
    assert "CUDA_VISIBLE_DEVICES" not in launch


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("chosen", [True, False])
def test_the_allocator_is_set_before_torch_loads(target, chosen):
    best = best_for(
        target,
        device="cuda",
        expandable_segments=chosen,
        variables={"PYTORCH_ALLOC_CONF": f"max_split_size_mb:64,expandable_segments:{not chosen}"},
    )
    launch = export(best, target)["launch.sh"]
    assert f"export PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:{chosen}\n" in launch


@pytest.mark.parametrize("target", TARGETS)
def test_one_gpu_is_used_but_not_the_very_one_of_the_measurement(target):
    best = best_for(target, device="cuda", variables={"CUDA_VISIBLE_DEVICES": "GPU-1234"})
    launch = export(best, target)["launch.sh"]
    assert 'CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"' in launch
    assert "GPU-1234" not in launch


@pytest.mark.parametrize("target", TARGETS)
def test_variables_of_the_measurement_are_set_with_shell_quoting(target):
    value = "a b'c $HOME"
    launch = export(best_for(target, variables={"MALLOC_TRIM_THRESHOLD_": value}), target)["launch.sh"]
    line = next(line for line in launch.splitlines() if "MALLOC_TRIM" in line)
    assert shlex.split(line) == ["export", f"MALLOC_TRIM_THRESHOLD_={value}"]


def test_the_trainer_gets_deepspeeds_configuration():
    best = make_best(device="cuda", gpus=8, engine="deepspeed", sharding="zero3", offload="optimizer")
    files = export(best, "transformers")
    assert json.loads(files["training_arguments.json"])["deepspeed"] == "deepspeed.json"
    settings = json.loads(files["deepspeed.json"])
    assert settings["zero_optimization"]["stage"] == 3
    assert settings["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert "offload_param" not in settings["zero_optimization"]
    # As the Trainer itself fills in `auto`, for a width of 64.
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    assert [settings["zero_optimization"][size] for size in sizes] == [64 * 64, int(0.9 * 64 * 64), 640]
    assert settings["bf16"]["enabled"]
    assert settings["gradient_accumulation_steps"] == "auto"
    assert refused(best, "accelerate") == {"engine"}
    best = make_best(device="cuda", gpus=8, engine="deepspeed", sharding="zero3", offload="full")
    settings = json.loads(export(best, "transformers")["deepspeed.json"])["zero_optimization"]
    assert settings["offload_param"] == settings["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_each_of_several_machines_starts_its_own_ranks():
    best = make_best(device="cuda", gpus=16, sharding="zero2").model_copy(update={"nodes": 2})
    launch = export(best, "native")["launch.sh"]
    assert "--nnodes=2 --nproc_per_node=8 " in launch
    assert "${NODE_RANK:?" in launch
    on_cpu = make_best(
        gpus=4, sharding="ddp", variables={"GLOO_SOCKET_IFNAME": "lo", "OMP_WAIT_POLICY": "active"}
    )
    assert "export GLOO_SOCKET_IFNAME=lo" in export(on_cpu, "native")["launch.sh"]
    apart = export(on_cpu.model_copy(update={"nodes": 2}), "native")["launch.sh"]
    assert "GLOO_SOCKET_IFNAME" not in apart  # loopback leads to no other machine
    assert "export OMP_WAIT_POLICY=active" in apart
    two_nodes = make_best(device="cuda", gpus=16, sharding="ddp").model_copy(update={"nodes": 2})
    assert refused(two_nodes, "accelerate") == {"nodes"}
