"""The table of known GPUs: memory, peak FLOP/s and bandwidths, from the vendors' data sheets."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from autotune import assets
from autotune.errors import InputError, nearest
from autotune.memory.device_overhead import DeviceOverhead
from autotune.units import GIB, MIB
from autotune.user_files import parse_yaml, require_kind
from autotune.validation import Frozen

Positive = Annotated[float, Field(gt=0)]


class Hardware(Frozen):
    """One model of GPU. Vendors' units in the file; bytes and FLOP/s from the methods."""

    id: str
    """Name for people and files: `h100-sxm-80gb`."""
    aliases: tuple[str, ...] = ()
    """Shorter names for people: `h100-80gb`, `h100`."""
    names: tuple[str, ...]
    """What its driver calls it, without a leading `NVIDIA ` or `Tesla `."""
    vendor: Literal["nvidia", "amd"]
    sold_gb: Positive
    """Memory as the vendor names it, in GB."""
    usable_gib: Positive
    """Memory that torch finds, in GiB."""
    bf16_tflops: Positive | None
    """Dense peak in 10^12 FLOP/s with fp32 accumulation; None where the hardware has no bf16."""
    fp16_tflops: Positive | None
    """Dense peak in 10^12 FLOP/s with fp32 accumulation."""
    fp8_tflops: Positive | None = None
    """Dense peak in 10^12 FLOP/s with fp32 accumulation; None where the hardware multiplies no 8-bit floats."""
    tf32_tflops: Positive | None
    """Dense peak in 10^12 FLOP/s; None where the hardware has no TF32."""
    fp32_tflops: Positive
    """Peak in 10^12 FLOP/s without tensor cores, which is what torch's fp32 uses unless TF32 is allowed."""
    memory_gb_s: Positive
    """Device memory bandwidth in 10^9 bytes/s."""
    link_gb_s: Positive | None
    """Bandwidth to other GPUs of the server in 10^9 bytes/s, both directions added; None without a link."""
    host_gb_s: Positive
    """Bandwidth to the host in 10^9 bytes/s, both directions added."""
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")] | None
    """CUDA's, such as `9.0`; None for other vendors."""
    cublas_mib: Positive
    """Workspace that torch takes for each cuBLAS handle and stream, in MiB."""
    source: str
    """Where the numbers are from."""

    def peak_flops(self) -> dict[str, float]:
        """Return the dense peak in FLOP/s by precision, without the precisions that the hardware lacks."""
        tflops = {
            "fp8": self.fp8_tflops,
            "bf16": self.bf16_tflops,
            "fp16": self.fp16_tflops,
            "tf32": self.tf32_tflops,
            "fp32": self.fp32_tflops,
        }
        return {precision: value * 1e12 for precision, value in tflops.items() if value is not None}

    def usable_bytes(self) -> int:
        """Return the bytes of memory that torch finds."""
        return int(self.usable_gib * GIB)

    def cublas_bytes(self) -> int:
        """Return the bytes of one cuBLAS workspace."""
        return int(self.cublas_mib * MIB)

    def overhead(self, gpus: int) -> DeviceOverhead:
        """Return what a process takes of one of so many that train together, as far as it is known without a probe."""
        return DeviceOverhead.measured("cuda", 0, self.cublas_bytes(), gpus, self.usable_bytes())


class HardwareTable(Frozen):
    """All known GPUs; ids and names are each used once."""

    hardware: tuple[Hardware, ...]

    @model_validator(mode="after")
    def _names_are_unique(self) -> HardwareTable:
        taken: set[str] = set()
        for row in self.hardware:
            for name in set(map(_plain, _names(row))):
                if name in taken:
                    raise ValueError(f"{row.id}: the name {name!r} is used twice")
                taken.add(name)
        return self


def parse_table(text: str, source: str) -> HardwareTable:
    """Validate the YAML text of a hardware table. Raises InputError with every problem."""
    data = parse_yaml(text, source)
    require_kind(data, "a table of hardware", source)
    return HardwareTable.load(data, source)


@cache
def table() -> HardwareTable:
    """Return the table that ships with autotune."""
    return parse_table(assets.shipped_text("hardware"), "hardware.yaml")


def lookup(name: str) -> Hardware | None:
    """Return the GPU with this id, alias or the name that its driver gives it, or None. Letter case does not matter."""
    wanted = _plain(name)
    for row in table().hardware:
        if wanted in map(_plain, _names(row)):
            return row
    return None


def find_hardware(name: str) -> Hardware:
    """Return the GPU with this id, alias or driver's name, dashes or spaces between its words, its `gb` there or not.

    No other name is guessed. Raises InputError that names what it could be.
    """
    wanted = "-".join(_words(name))
    rows = table().hardware
    for row in rows:
        if {wanted, f"{wanted}gb"} & {"-".join(_words(known)) for known in _names(row)}:
            return row
    words = set(_words(name))
    could_be = [row.id for row in rows if words <= _words_of(row)]
    if len(could_be) > 1:
        raise InputError(f"GPU {name!r} could be {' or '.join(could_be)}; name one of them")
    # Not by its size: 80 GB are many GPUs'.
    family = {word for word in words if not re.fullmatch(r"\d{1,3}(gb)?", word)} - _COMMON
    related = [row.id for row in rows if family & _words_of(row)]
    if related:
        raise InputError(f"GPU {name!r} is unknown; did you mean {', '.join(could_be or related)}?")
    known = [_plain(known) for row in rows for known in _names(row)]
    raise InputError(f"GPU {name!r} is unknown; {nearest(name.lower(), known)}")


_COMMON = frozenset({"rtx", "geforce", "pcie", "sxm", "amd", "instinct", "ada", "generation"})
"""Words that tell no GPU from another."""


def _names(row: Hardware) -> tuple[str, ...]:
    return (row.id, *row.aliases, *row.names)


def _words(name: str) -> list[str]:
    return _plain(name.replace("-", " ").replace("_", " ")).split()


def _words_of(row: Hardware) -> set[str]:
    return {word for name in _names(row) for word in _words(name)}


def _plain(name: str) -> str:
    plain = " ".join(name.lower().split())
    return plain.removeprefix("nvidia ").removeprefix("tesla ")
