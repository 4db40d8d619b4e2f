"""The GPU as it is: what NVML says agrees with what torch sees, and a probe's memory is seen and given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.devices.device import Device, DeviceBusy
from autotune.devices.find import find
from autotune.errors import InputError
from autotune.specs import DeviceSpec
from autotune.units import GIB, MIB

pytestmark = pytest.mark.gpu

HOLD = """
import json, sys, torch
gib = float(sys.argv[1])
held = torch.ones(int(gib * 2**30), dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
facts = torch.cuda.get_device_properties(0)
print(json.dumps({"name": facts.name, "count": torch.cuda.device_count(), "total": facts.total_memory,
    "uuid": str(facts.uuid), "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    "reserved": torch.cuda.memory_reserved()}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def device() -> Device:
    try:
        return find(DeviceSpec.parse("cuda"))
    except InputError as error:
        pytest.skip(str(error))


def holder(device: Device, gib: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **device.environment(Candidate())},
    )  # fmt: skip


def test_torch_sees_the_same_device(device: Device, tmp_path: Path) -> None:
    with holder(device, 0.5) as process:
        assert process.stdout is not None
        seen = json.loads(process.stdout.readline())
    facts = device.facts()
    assert seen["name"] == facts.name
    assert seen["count"] == 1
    assert seen["uuid"] in device.environment(Candidate())["CUDA_VISIBLE_DEVICES"]
    assert seen["bf16"] == facts.supports("bf16")
    assert facts.total * 0.97 <= seen["total"] <= facts.total
    assert device.offload_room(tmp_path, "host") > GIB
    assert device.offload_room(tmp_path, "disk") > 0
    device.prepare()


def test_the_watch_sees_what_a_process_takes_and_prepare_that_it_is_gone(device: Device) -> None:
    device.prepare()
    with device.watch() as watch, holder(device, 2) as process:
        assert process.stdout is not None
        seen = json.loads(process.stdout.readline())
        with pytest.raises(DeviceBusy):
            device.prepare(timeout=0.5)
    assert watch.peak is not None
    taken = watch.peak - seen["reserved"]
    assert 0 < taken < device.minimum() + 512 * MIB  # the context, and what the driver rounds up
    device.prepare()
