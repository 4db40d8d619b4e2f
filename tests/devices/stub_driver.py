"""A compiled stand-in for NVIDIA's library under the real pynvml."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pynvml
import pytest

SOURCE = Path(__file__).parent.parent / "cuda_stubs" / "nvml.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def driver(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
