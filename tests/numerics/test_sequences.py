"""Padded and packed rows against their documents one by one: the same losses and gradients, and none that leak."""

import pytest
import torch

from autotune.lengths import Lengths
from autotune.worker.build.assembly import assemble
from autotune.worker.data.packing import IGNORED, rows_of
from tests.data.requests import family, request
from tests.reasons import refused

LENGTHS = Lengths(file="lengths.csv", digest="0", counts=((3, 4), (7, 3), (12, 2), (32, 1)))
ROWS = 3


def open_training(model, tmp_path, sequences, **fields):
    probe = request(family(model), tmp_path, **{"precision": "fp32", "sequences": sequences, **fields})
    return assemble(probe.model_copy(update={"lengths": LENGTHS}))


def documents(batch, rows):
    """Cut a batch into its documents, each as a batch of its own without padding."""
    for tokens, row in zip(batch["input_ids"], rows, strict=True):
        start = 0
        for length in row:
            text = tokens[None, start : start + length]
            yield {"input_ids": text, "labels": text}
            start += length


def gradients(training):
    found = [p.grad.clone() for p in training.model.parameters() if p.grad is not None]
    training.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("loss", ["full", "chunked"])
@pytest.mark.parametrize("sequences", ["padded", "packed"])
@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral"])
def test_rows_train_as_their_documents_do_one_by_one(model, sequences, loss, tmp_path):
    training = open_training(model, tmp_path, sequences, loss=loss)
    training.model.eval()  # dropout would draw other masks for other shapes
    batch = training.batch(0, ROWS)
    rows = LENGTHS.rows(sequences, 32, seed=0)[:ROWS]
    targets = sum(length - 1 for row in rows for length in row)
    assert training.targets(batch) == targets, "no padding, and no document's first token"
    together = training.loss(batch)
    together.backward()
    ours = gradients(training)
    apart = 0.0
    for document in documents(batch, rows):
        share = (document["input_ids"].numel() - 1) / targets
        alone = training.loss(document) * share
        alone.backward()
        apart += alone.item()
    # fp32 sums in another order: 2^-24 an addition, over some hundred of them.
    assert together.item() == pytest.approx(apart, rel=1e-5)
    for one, other in zip(ours, gradients(training), strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm() + 1e-7


def test_the_same_row_comes_whatever_the_micro_batch(tmp_path):
    training = open_training("gpt2", tmp_path, "packed")
    whole = training.batch(1, 4)
    for name, value in whole.items():
        assert torch.equal(value, torch.cat([training.batch(index, 1)[name] for index in range(4, 8)]))


def test_packed_rows_stand_in_one_for_flash_attention():
    symbols = torch.arange(8)
    apart = rows_of(symbols, ((3, 2), (4,)), 6, packed=True, in_one=False)([0, 1])
    in_one = rows_of(symbols, ((3, 2), (4,)), 6, packed=True, in_one=True)([0, 1])
    assert apart["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]
    assert (apart["labels"] == IGNORED).tolist() == [
        [True, False, False, True, False, True],
        [True, False, False, False, True, True],
    ]
    assert all(torch.equal(in_one[name], apart[name].view(1, -1)) for name in apart)


def test_a_model_whose_documents_attend_to_each_other_is_refused(tmp_path):
    with refused("sequences", "context"):
        open_training("opt", tmp_path, "packed")
    open_training("opt", tmp_path, "padded").close()


def test_a_model_of_another_task_is_refused(tmp_path):
    with refused("sequences", "context"):
        open_training("bert", tmp_path, "padded")


def test_trying_a_model_leaves_its_training_as_it_was(tmp_path):
    """The trial draws no number of the training's, and leaves no gradient."""
    packed, padded = (open_training("gpt2", tmp_path, sequences) for sequences in ("packed", "padded"))
    assert packed.model.training
    assert all(parameter.grad is None for parameter in packed.model.parameters())
    pairs = zip(packed.model.parameters(), padded.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
