"""One rank of two that share a model, on a real GPU; the other does not exist, so only memory means something."""

import pytest

torch = pytest.importorskip("torch")

from autotune.worker.build.assembly import assemble  # noqa: E402 - only where torch is there
from autotune.worker.measuring.memory_breakdown import gradient_bytes, parameter_bytes, state_bytes  # noqa: E402
from autotune.worker.replacing import replaced  # noqa: E402
from autotune.worker.techniques.sharding import process_group  # noqa: E402
from autotune.worker.tracing.fakes import ranks as fake_ranks  # noqa: E402
from tests.data.requests import family, request  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


def held(folder, cut, **candidate):
    """Return the bytes of parameters, gradients and optimizer state after two steps."""
    probe = request(family("llama"), folder, device="cuda:0", tensor_parallel=cut, **candidate)
    with replaced([(process_group, "form_group", fake_ranks.form_first)]):
        training = assemble(probe.model_copy(update={"world_size": cut}))
        for step in range(2):
            training.loss(training.place(training.batch(step, 2))).backward()
            gradients = gradient_bytes(training)
            training.optimizer.step()
            training.optimizer.zero_grad()
        found = parameter_bytes(training), gradients, state_bytes(training)
        assert all(buffer.device.type == "cuda" for buffer in training.model.buffers())
        training.close()
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_rank_holds_half(tmp_path, precision, checkpointing):
    fields = {"precision": precision, "checkpointing": checkpointing}
    for ours, whole in zip(held(tmp_path, 2, **fields), held(tmp_path, 1, **fields), strict=True):
        assert ours == pytest.approx(whole / 2, rel=0.02)
