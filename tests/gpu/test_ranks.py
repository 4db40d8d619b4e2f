"""Two ranks on two GPUs: what only NCCL shows."""

import pytest

from autotune.candidate import Candidate
from autotune.executors.find import find_executor
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest
from autotune.specs import DeviceSpec, ModelSpec
from autotune.tracing.client import LocalTracer
from tests.gpu.test_worker import CONFIG

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("reduce_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_two_ranks_say_how_long_they_communicated(tmp_path, sharding, reduce_dtype):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("there are no two NVIDIA GPUs that torch can use")
    executor = find_executor(DeviceSpec(kind="cuda"), LocalTracer(), 2)
    request = ProbeRequest(
        kind="train", model=ModelSpec(name="small", source="config", config=CONFIG),
        candidate=Candidate(sharding=sharding, reduce_dtype=reduce_dtype), seq_len=1024, accumulation_steps=2,
        device="cuda:0", world_size=2, budget=executor.describe().device.budget, seed=0, sample_seconds=5,
        sample_steps=10, folder="",
    )  # fmt: skip
    answer = executor.run(request, tmp_path, timeout=300).answer
    assert isinstance(answer, Ok), answer
    heard = answer.communication
    assert heard is not None, "NCCL's kernels are in the profile"
    assert (heard.micro_step > 0) is (sharding == "fsdp2")  # DDP reduces in the last micro-step alone
    assert 0 < heard.last_micro_step < 2 * answer.timing.last_micro_step.mean
