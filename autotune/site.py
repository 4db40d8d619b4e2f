"""Where probes run: the device and the machine that it is in, as a process there sees them. Plain data: it travels."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autotune.specs import DeviceFacts
from autotune.validation import Frozen

RECORDED = ("autotune", "torch", "transformers", "accelerate", "pydantic")
"""Packages whose version is written beside every result."""


class MachineFacts(Frozen):
    """What is installed on a machine, and what the machine is. `environment.look_around` looks."""

    packages: dict[str, str] = Field(default_factory=dict)
    """Version of each package that a technique or a record names, by its name on PyPI; those that are missing are left
    out."""
    lacks_compiler: dict[Literal["cpu", "cuda"], str] = Field(default_factory=dict)
    """Why torch.compile cannot run, by the kind of device; a kind on which it can is left out."""
    liger_models: tuple[str, ...] | None = None
    """Types of models that the installed liger-kernel has kernels for; None where there is none, or it does not say."""
    python: str = ""
    """Version of Python."""
    system: str = ""
    """Operating system with its release."""
    libc: str = ""
    """C library with its version."""
    processor: str = ""
    """The processor's model name, and how many cores a process may use."""

    def environment(self) -> dict[str, str]:
        """Return what a result depends on, as text: versions, operating system, processor."""
        versions = {name: self.packages[name] for name in RECORDED if name in self.packages}
        machine = {
            "python": self.python,
            "system": self.system,
            "libc": self.libc,
            "processor": self.processor,
        }
        return versions | machine


class Site(Frozen):
    """A device with the machine that it is in."""

    device: DeviceFacts
    machine: MachineFacts
