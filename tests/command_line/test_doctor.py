import pytest

from autotune import doctor
from autotune.candidate import AXES, Candidate, choices
from autotune.doctor import diagnose
from autotune.options import load_space
from autotune.specs import DeviceFacts
from autotune.techniques import check
from autotune.techniques.axis import Context
from autotune.techniques.check import refusal, simplest, unsupported
from autotune.techniques.families import DECLARED

CPU = DeviceFacts(kind="cpu", name="A processor", torch_name="cpu", budget=1, total=1, dtypes=("bf16",))
GPU = DeviceFacts(kind="cuda", name="A GPU", torch_name="cuda:0", budget=1, total=1, dtypes=("bf16", "fp8"))
OLD = GPU.model_copy(update={"name": "An old GPU", "dtypes": ()})
VALUES = [(axis, value) for axis in AXES for value in choices(axis)]
PACKAGES = {
    (axis.name, name): value.packages
    for axis in DECLARED
    for name, value in axis.values.items()
    if value.packages
}


def on(device):
    return Context(device=device, on_this_machine=True)


@pytest.fixture
def have(monkeypatch):
    """Let this machine have no packages but those named, and a compiler with triton."""

    def only(*packages):
        monkeypatch.setattr(check, "installed", lambda name: "9.9" if name in packages else None)

    monkeypatch.setattr(check, "lacks_compiler", lambda kind: None)
    return only


def test_doctor_speaks_of_every_value_of_every_axis(have):
    have()
    found = {finding.subject: finding for finding in diagnose()}
    for axis in AXES:
        can, *cannot = found[axis].text.split(". not ")
        named = [*filter(None, can.split(", ")), *(reason.partition(": ")[0] for reason in cannot)]
        assert sorted(named) == sorted(map(doctor._shown, choices(axis)))
        assert found[axis].state == ("warning" if cannot else "ok")
        assert all(reason.partition(": ")[2] for reason in cannot)


@pytest.mark.parametrize(("axis", "value"), VALUES)
def test_a_gpu_with_every_package_runs_every_value(axis, value, have):
    assert refusal(simplest(axis, value)) is None
    have(*(name for names in PACKAGES.values() for name in names))
    assert unsupported(axis, value, on(GPU)) is None


@pytest.mark.parametrize("pair", PACKAGES, ids=str)
def test_each_missing_package_is_told_with_what_installs_it(pair, have):
    for name in PACKAGES[pair]:
        have(*(other for other in PACKAGES[pair] if other != name))
        assert f"{name} is not installed: pip install" in unsupported(*pair, on(GPU))


def test_what_a_processor_and_an_old_gpu_lack_is_told(have):
    have(*(name for names in PACKAGES.values() for name in names))
    lacks = {pair: reason for pair in VALUES if (reason := unsupported(*pair, on(CPU)))}
    assert {("attention", "flash_attention_2"), ("attention", "flex_attention"), ("kernels", "liger"),
            ("precision", "fp8")} <= set(lacks)  # fmt: skip
    assert "Triton" in lacks["kernels", "liger"]
    assert unsupported("precision", "bf16", on(OLD)).startswith("An old GPU does not compute in bf16")
    assert "does not compute in fp8" in unsupported("precision", "fp8", on(OLD))
    assert unsupported("precision", "fp32", on(OLD)) is None


def test_doctor_says_which_bitsandbytes_would_help(have):
    have()
    found = {finding.subject: finding for finding in diagnose()}
    assert (
        "not adamw-8bit: bitsandbytes is not installed: pip install 'autotune[bitsandbytes]'"
        in found["optimizer"].text
    )
    assert "pip install flash-attn" in found["attention"].text


def test_the_ladder_is_legal_from_rung_to_rung():
    space = load_space("everything")
    rungs = space.rungs(Candidate())
    assert len(rungs) > 8
    assert not [rung for rung in rungs if refusal(rung)]
    assert any(rung.activation_offload and rung.offload == "full" for rung in rungs)
