"""The table of GPUs is complete, consistent with physics, and found by every name."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import assets
from autotune.devices.hardware import Hardware, find_hardware, lookup, parse_table, table
from autotune.errors import InputError
from autotune.timing.machine import ATTENTION, MATRIX
from autotune.units import GIB
from autotune.user_files import read_text

ROWS = table().hardware


@pytest.mark.parametrize(
    ("reported", "id"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("Tesla T4", "t4-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-24gb"),
        ("rtx-4090-24GB", "rtx-4090-24gb"),
        ("H100", "h100-sxm-80gb"),
        ("v100-32gb", "v100-sxm-32gb"),
        ("h100-96", "gh200-96gb"),
        ("H100 96GB", "gh200-96gb"),
        ("NVIDIA GH200 120GB", "gh200-96gb"),
        ("h100-80", "h100-sxm-80gb"),
        ("a6000", "rtx-a6000-48gb"),
        ("NVIDIA RTX A6000", "rtx-a6000-48gb"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada-48gb"),
        ("rtx 6000 ada", "rtx-6000-ada-48gb"),
        ("L4", "l4-24gb"),
        ("rtx-5090", "rtx-5090-32gb"),
        ("NVIDIA GB200", "gb200-186gb"),
        ("NVIDIA B300 SXM6 AC", "b300-288gb"),
        ("mi325x", "mi325x-256gb"),
        ("MI355X", "mi355x-288gb"),
    ],
)
def test_a_gpu_is_found_by_what_nvml_calls_it(reported: str, id: str) -> None:
    assert find_hardware(reported).id == id


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 D", "NVIDIA A10"]
)
def test_a_gpu_that_only_looks_alike_is_not_taken_for_one_that_is_known(name: str) -> None:
    assert lookup(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h100-sxm", "h100-sxm-80gb"),
        ("mi300-192gb", "is unknown; did you mean mi300x-192gb"),
        ("a100-pcie", "could be a100-pcie-40gb or a100-pcie-80gb; name one"),
        ("v100-sxm", "could be v100-sxm-16gb or v100-sxm-32gb; name one"),
        ("h100-64", "is unknown; did you mean h100-sxm-80gb, h100-pcie-80gb, h100-nvl-94gb, gh200-96gb?"),
        ("h100-pcie-96gb", "is unknown; did you mean h100"),
        ("rtx-6000", "is unknown; did you mean rtx-6000-ada-48gb?"),
        ("rtx-4090-d", "is unknown; did you mean rtx-4090-24gb?"),
        ("a6000-ada", "is unknown; did you mean rtx-a6000-48gb?"),
    ],
)
def test_a_name_that_is_no_gpus_is_never_guessed(name: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        find_hardware(name)
    assert said in str(caught.value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_gpu_is_timed_by_its_own_generation(row: Hardware) -> None:
    """What no generation is known for would be timed as AMD's."""
    if row.compute_capability is not None:
        major = int(row.compute_capability.split(".")[0])
        assert major in MATRIX
        assert major in ATTENTION


def test_known_peaks_are_dense() -> None:
    assert find_hardware("h100-sxm-80gb").peak_flops()["bf16"] == pytest.approx(989.4e12)
    assert find_hardware("a100-sxm-80gb").peak_flops()["bf16"] == pytest.approx(312e12)
    assert "bf16" not in find_hardware("t4-16gb").peak_flops()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_numbers_of_a_row_agree_with_each_other(row: Hardware) -> None:
    assert 0.9 * row.sold_gb * 1e9 < row.usable_bytes() <= row.sold_gb * GIB
    assert row.source
    if row.vendor == "nvidia":
        assert row.compute_capability is not None
        major = int(row.compute_capability.split(".")[0])
        assert (row.bf16_tflops is not None) == (major >= 8)
        assert row.bf16_tflops in (None, row.fp16_tflops)
        assert row.cublas_mib == (32 if major >= 9 else 8.125)
        if row.tf32_tflops is not None and row.bf16_tflops is not None:
            assert row.bf16_tflops / row.tf32_tflops == pytest.approx(2, rel=0.02)
        assert (row.fp8_tflops is not None) == (float(row.compute_capability) >= 8.9)
    if row.fp8_tflops is not None:  # half the bits, twice the products
        assert row.bf16_tflops is not None
        assert row.fp8_tflops / row.bf16_tflops == pytest.approx(2, rel=0.02)


def test_a_name_used_twice_is_refused() -> None:
    text = assets.find_text("hardware").replace("names: [H200 NVL]", "names: [NVIDIA h200]")
    with pytest.raises(InputError, match="used twice"):
        parse_table(text, "mine.yaml")


def test_mistakes_in_a_table_are_all_named() -> None:
    text = assets.find_text("hardware").replace("usable_gib: 39.49", "useable_gib: 39.49", 1)
    with pytest.raises(InputError) as caught:
        parse_table(text, "mine.yaml")
    assert any(
        "useable_gib: unknown key; did you mean usable_gib" in problem for problem in caught.value.problems
    )
    assert any("usable_gib: this key is required" in problem for problem in caught.value.problems)


def test_the_users_own_file_comes_before_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hardware.yaml").write_text("mine: true\n")
    assert assets.find_text("hardware.yaml") == "mine: true\n"
    assert "h100" in assets.find_text("hardware")


def test_a_missing_file_is_named_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hardware"):
        assets.find_text("hardwear")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError) as caught:
        assets.find_text(str(tmp_path / "binary.yaml"))
    with pytest.raises(InputError) as of_any_file:
        read_text(tmp_path / "binary.yaml")
    assert caught.value.problems == of_any_file.value.problems
