"""On a GPU: batches out of pinned memory are those of the dataset, and packed documents do not attend to each other."""

import pytest

torch = pytest.importorskip("torch")

from autotune.candidate import Candidate  # noqa: E402 - only where torch is there
from autotune.lengths import Lengths  # noqa: E402
from autotune.worker.build.assembly import assemble  # noqa: E402
from autotune.worker.data.loading import Loader  # noqa: E402
from autotune.worker.data.placing import placing_on  # noqa: E402
from tests.data.own_model import Texts, pad  # noqa: E402
from tests.data.requests import family, request  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]

LENGTHS = Lengths(file="lengths.csv", digest="0", counts=((3, 4), (7, 3), (12, 2), (32, 1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_are_those_of_the_dataset(workers):
    plain = Loader(Texts(), pad, Candidate(), torch.device("cpu"), seed=0)
    pinned = Loader(
        Texts(), pad, Candidate(num_workers=workers, pin_memory=True), torch.device("cuda:0"), seed=0
    )
    for index in range(6):
        expected, found = plain.batch(index, 3), pinned.batch(index, 3)
        assert all(value.is_pinned() for value in found.values())
        placed = placing_on(torch.device("cuda:0"), pinned=False)(found)
        torch.cuda.synchronize()
        assert all(torch.equal(expected[name], placed[name].cpu()) for name in expected)
    pinned.close()


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_packed_rows_have_the_loss_of_their_documents(attention, tmp_path):
    if attention == "flash_attention_2":
        pytest.importorskip("flash_attn")
    probe = request(
        family("llama"), tmp_path, device="cuda:0", precision="bf16", sequences="packed", attention=attention
    )
    training = assemble(probe.model_copy(update={"lengths": LENGTHS}))
    rows = LENGTHS.rows("packed", 32, seed=0)[:3]
    batch = training.place(training.batch(0, 3))
    tokens = batch["input_ids"].flatten()
    alone, start = 0.0, 0
    with torch.no_grad():
        together = training.loss(batch).item()
        for row in rows:
            place = start
            for length in row:
                text = tokens[None, place : place + length]
                alone += training.loss({"input_ids": text, "labels": text}).item() * (length - 1)
                place += length
            start += 32
    # bf16 keeps 8 bits: a loss of some hundred targets agrees to far less than a part in a hundred.
    assert together == pytest.approx(alone / sum(n - 1 for row in rows for n in row), rel=5e-3)
