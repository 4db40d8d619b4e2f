from autotune.devices.cpu import CpuDevice
from autotune.units import MIB
from benchmarks.grid_definitions import LIVE
from benchmarks.live_cases import cases


def test_a_live_case_gets_the_budget_that_its_plain_rung_takes_at_a_few_samples():
    assert all(one.device is None for one in LIVE)
    wanted = LIVE[2]
    (found,) = cases([wanted.name])
    assert found.name == wanted.name
    assert found.space() == wanted.space()
    budget = found.device_spec().budget
    floor = CpuDevice(budget).minimum()
    assert floor < budget < floor + 400 * MIB
