"""A probe on a GPU that is forked from a server: the server never touches the driver, so the fork can."""

import pytest

from autotune.candidate import Candidate
from autotune.executors.find import find_executor
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest
from autotune.probe.warm import WarmLauncher
from autotune.specs import DeviceSpec, ModelSpec
from autotune.tracing.client import LocalTracer
from tests.gpu.test_worker import CONFIG

pytestmark = pytest.mark.gpu


def test_forks_train_on_the_gpu_one_after_the_other(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA GPU that torch can use")
    reports = []
    with WarmLauncher() as warm:

        def launch(*where, **options):
            reports.append(warm(*where, **options))
            return reports[-1]

        executor = find_executor(DeviceSpec(kind="cuda"), LocalTracer(), launcher=launch)
        request = ProbeRequest(
            kind="train", model=ModelSpec(name="small", source="config", config=CONFIG), candidate=Candidate(),
            seq_len=1024, accumulation_steps=2, device="cuda:0", budget=executor.describe().device.budget, seed=0,
            sample_seconds=5, sample_steps=10, folder="",
        )  # fmt: skip
        answers = [executor.run(request, tmp_path / str(turn), timeout=300).answer for turn in range(2)]
    assert [report.launcher for report in reports] == ["warm", "warm"], reports[0].cold_because
    assert all(isinstance(answer, Ok) for answer in answers), answers
    assert answers[0].losses[0] == answers[1].losses[0]
