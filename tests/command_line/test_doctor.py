import pytest

from autotune import doctor
from autotune.candidate import AXES, Candidate, examples
from autotune.doctor import diagnose
from autotune.search.shipped import load_space
from autotune.site import MachineFacts
from autotune.specs import DeviceFacts
from autotune.techniques.axis import Context
from autotune.techniques.check import refusal, simplest, unsupported
from autotune.techniques.families import DECLARED

CPU = DeviceFacts(kind="cpu", name="A processor", torch_name="cpu", budget=1, total=1, dtypes=("bf16",))
GPU = DeviceFacts(kind="cuda", name="A GPU", torch_name="cuda:0", budget=1, total=1, dtypes=("bf16", "fp8"))
OLD = GPU.model_copy(update={"name": "An old GPU", "dtypes": ()})
VALUES = [(axis, value) for axis in AXES for value in examples(axis)]
PACKAGES = {
    (axis.name, name): value.packages
    for axis in DECLARED
    for name, value in axis.values.items()
    if value.packages
}


def having(*packages):
    """Return a machine with no packages but those named, and a compiler with triton."""
    return MachineFacts(packages=dict.fromkeys(packages, "9.9"))


ALL = having(*(name for names in PACKAGES.values() for name in names))


@pytest.fixture
def bare(monkeypatch):
    """Let this machine have no packages."""
    monkeypatch.setattr(doctor, "this_machine", having)


def test_doctor_speaks_of_every_value_of_every_axis(bare):
    found = {finding.subject: finding for finding in diagnose()}
    for axis in AXES:
        can, *cannot = found[axis].text.split(". not ")
        named = [*filter(None, can.split(", ")), *(reason.partition(": ")[0] for reason in cannot)]
        assert sorted(named) == sorted(doctor._shown(axis, value) for value in examples(axis))
        assert found[axis].state == ("warning" if cannot else "ok")
        assert all(reason.partition(": ")[2] for reason in cannot)


@pytest.mark.parametrize(("axis", "value"), VALUES)
def test_a_gpu_with_every_package_runs_every_value(axis, value):
    assert refusal(simplest(axis, value)) is None
    assert unsupported(axis, value, Context(device=GPU, machine=ALL)) is None


@pytest.mark.parametrize("pair", PACKAGES, ids=str)
def test_each_missing_package_is_told_with_what_installs_it(pair):
    for name in PACKAGES[pair]:
        lacking = Context(device=GPU, machine=having(*(other for other in PACKAGES[pair] if other != name)))
        assert f"{name} is not installed: pip install" in unsupported(*pair, lacking)


def test_what_a_processor_and_an_old_gpu_lack_is_told():
    cpu, old = (Context(device=device, machine=ALL) for device in (CPU, OLD))
    lacks = {pair: reason for pair in VALUES if (reason := unsupported(*pair, cpu))}
    assert {("attention", "flash_attention_2"), ("attention", "flex_attention"), ("kernels", "liger"),
            ("precision", "fp8")} <= set(lacks)  # fmt: skip
    assert "Triton" in lacks["kernels", "liger"]
    assert unsupported("precision", "bf16", old).startswith("An old GPU does not compute in bf16")
    assert "does not compute in fp8" in unsupported("precision", "fp8", old)
    assert unsupported("precision", "fp32", old) is None


def test_doctor_says_which_bitsandbytes_would_help(bare):
    found = {finding.subject: finding for finding in diagnose()}
    assert (
        "not adamw-8bit: bitsandbytes is not installed: pip install 'autotune[bitsandbytes]'"
        in found["optimizer"].text
    )
    assert "pip install flash-attn" in found["attention"].text


@pytest.mark.parametrize("asked", ["", "malloc"])
def test_doctor_says_what_training_on_the_processor_allocates_with(bare, monkeypatch, asked):
    monkeypatch.setenv("AUTOTUNE_ALLOCATOR", asked)
    found = {finding.subject: finding for finding in diagnose()}["cpu device's allocator"]
    assert found.state == ("warning" if asked else "ok")
    assert ("AUTOTUNE_ALLOCATOR=malloc" in found.text) == bool(asked)


def test_the_ladder_is_legal_from_rung_to_rung():
    space = load_space("everything")
    rungs = space.rungs(Candidate())
    assert len(rungs) > 8
    assert not [rung for rung in rungs if refusal(rung)]
    assert any(rung.activation_offload and rung.offload == "full" for rung in rungs)
