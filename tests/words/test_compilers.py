"""Which compilers this machine lacks for what makes its own kernels."""

from __future__ import annotations

import shutil

import pytest

from autotune import environment
from autotune.candidate import Candidate
from autotune.site import MachineFacts
from autotune.specs import DeviceFacts
from autotune.techniques.axis import Context
from autotune.techniques.check import refused

GPU = DeviceFacts(kind="cuda", name="A GPU", torch_name="cuda:0", budget=1, total=1, dtypes=("bf16",))


@pytest.mark.parametrize(
    ("there", "named", "lacks"),
    [
        ({"gcc"}, None, False), ({"clang"}, None, False), (set(), None, True), ({"cc"}, None, True),
        ({"gcc"}, "mycc", True), ({"mycc"}, "mycc", False),
    ],
)  # fmt: skip
def test_triton_needs_a_c_compiler(
    there: set[str], named: str | None, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.delenv("CC", raising=False)
    if named:
        monkeypatch.setenv("CC", named)
    reason = environment.lacks_compiler("cuda")
    assert (reason is not None) == lacks
    assert not reason or "C compiler" in reason


@pytest.mark.parametrize(
    "candidate",
    [Candidate(kernels="liger"), Candidate(attention="flex_attention"), Candidate(compile="regional")],
)
def test_what_triton_compiles_is_refused_without_one_before_launch(candidate: Candidate) -> None:
    machine = MachineFacts(
        packages={"liger-kernel": "0.8"}, lacks_compiler={"cuda": "no compiler"}, liger_models=("gpt2",),
        python="3.12", system="Linux", libc="", processor="",
    )  # fmt: skip
    found = refused(candidate, Context(device=GPU, machine=machine))
    assert found is not None
    assert found.cause == "compiler"
