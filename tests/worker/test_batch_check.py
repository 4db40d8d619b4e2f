"""What a batch of a user's own may look like, and what is not what was asked for."""

import pytest
import torch

from autotune.candidate import Candidate
from autotune.errors import ModelError
from autotune.run.failure import inspection_failed
from autotune.worker.build.assembly import assemble
from autotune.worker.build.inspect import inspect_model
from autotune.worker.data.batch_check import WrongBatch, check_collated, check_made
from autotune.worker.data.loading import Loader
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.verdict import Circumstances, verdict
from tests.data.own_model import Texts, pad
from tests.data.requests import OWN, request

T = 128


def ints(*shape):
    return torch.zeros(shape, dtype=torch.long)


def floats(*shape):
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda n: {"tokens": ints(1, T)}, r"tokens \[1 x 128\]: 1 row where 2 were asked for"),
        (lambda n: {"tokens": ints(1, T), "scale": floats(n)}, "1 or 2 rows where 2"),
        (lambda n: {"tokens": ints(2 * n, T)}, "4 rows where 2 were asked for"),
        (lambda n: {"tokens": ints(2 * n, T), "mask": ints(1, T)}, "1 or 4 rows where 2"),
        (lambda n: {"pixel_values": floats(2 * n, 3, 8, 8), "labels": ints(2 * n)}, "4 rows where 2"),
        (lambda n: {"tokens": ints(n, 16)}, "rows of 16 tokens where 128 were asked for.*--seq-len 16"),
        (lambda n: {"tokens": ints(n, 16), "mask": floats(n, 16)}, "rows of 16 tokens"),
        (lambda n: {"inputs_embeds": floats(n, 16, 8), "labels": ints(n, 16)}, "rows of 16 tokens"),
        (lambda n: {"tokens": ints(n, 2 * T)}, "rows of 256 tokens"),
        (lambda n: [n], "must be a dict of tensors, it is list"),
        (lambda n: {}, "must be a dict of tensors"),
    ],
)
def test_a_batch_maker_that_does_something_else_is_refused_with_what_was_seen(make, said):
    with pytest.raises(WrongBatch, match=said) as caught:
        check_made(make(2), 2, T)
    assert caught.value.exit_code == 4
    assert "make_batch(2, 128)" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"tokens": ints(n, T), "targets": ints(n, T)},
        lambda n: {"tokens": ints(n, T + 1)},  # inputs and targets are cut out of one text
        lambda n: {"tokens": ints(n, T - 1), "targets": ints(n, T - 1)},
        lambda n: {"input_ids": ints(n, T), "labels": ints(n, 20)},  # a translation is shorter
        lambda n: {"tokens": ints(n, T), "positions": ints(1, T), "cache": ints(T), "scale": floats()},
        lambda n: {"tokens": ints(n, T), "position_ids": ints(3, n, T), "mask": floats(n, 1, T, T)},
        lambda n: {"choices": ints(n, 4, T), "labels": ints(n)},
        lambda n: {"tokens": ints(1, n * T), "position_ids": ints(1, n * T)},  # packed into one row
        lambda n: {"tokens": ints(n * T), "cu_seqlens": ints(n + 1)},  # packed into none
        lambda n: {"tokens": ints(1, n * (T + 1))},
        lambda n: {"pixel_values": floats(n, 3, 32, 32), "labels": ints(n)},
        lambda n: {"pixel_values": floats(n, 3, 32, 32), "labels": ints(n, 32, 32)},
        lambda n: {"x": floats(n, T, 8)},
        lambda n: {"x": floats(n * T, 8)},
        lambda n: {"input_features": floats(n, 80, 3000), "labels": ints(n, 20)},  # sound
        lambda n: {"past_values": floats(n, T), "static_categorical_features": ints(n, 1)},
        lambda n: {"input_ids": ints(n, T), "pixel_values": floats(n * 50, 588)},  # patches of all images
    ],
)
def test_what_is_legitimate_is_not_refused(make):
    for size in (1, 2, 3):
        check_made(make(size), size, T)


def flattened(samples):
    return {"tokens": torch.cat([sample["tokens"] for sample in samples])[None]}


def paired(samples):
    return pad([sample for sample in samples for _ in range(2)])


@pytest.mark.parametrize("collate", [pad, flattened, paired])
def test_samples_may_be_padded_packed_or_several_rows_each(collate):
    texts = Texts()
    for size in (2, 3):
        check_collated(collate([texts[3]] * size), size, collate([texts[3]]), copies=True)
        check_collated(collate([texts[number] for number in range(size)]), size, collate([texts[3]]))


def test_samples_that_are_left_out_are_seen():
    texts = Texts()
    one = pad([texts[3]])
    with pytest.raises(WrongBatch, match=r"the batch of 2 samples holds tokens \[1 x 11\].*: 1 row, where"):
        check_collated(one, 2, one, copies=True)
    with pytest.raises(WrongBatch) as caught:
        check_collated(pad([texts[3]] * 2), 3, one)
    assert caught.value.what == "rows"
    loader = Loader(texts, lambda samples: pad(samples[:1]), Candidate(), torch.device("cpu"), seed=0)
    with pytest.raises(WrongBatch) as caught:
        loader.heaviest(4)
    assert caught.value.what == "rows"


def own(name):
    return OWN.model_copy(update={"name": f"own_model:{name}"})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("build_with_one_row", "^make_batch.2, 8. made tokens .1 x 8., .*: 1 row where 2"),
        ("build_with_one_row_of_samples", "^the batch of 2 samples holds"),
        ("build_for_single_samples", "failed on a first batch: ValueError: too many values to unpack"),
    ],
)
def test_batches_of_two_sizes_are_looked_at_before_any_probe(tmp_path, function, said):
    """As the tuner tells it: the model's own failure, with exit code 4."""
    phases = Phases(lambda *_: None)
    asked = request(own(function), tmp_path, seq_len=8).model_copy(update={"kind": "inspect"})
    with pytest.raises((ModelError, ValueError)) as caught:
        inspect_model(asked, phases)
    at = Circumstances(phase=phases.phase, step=0, device="cpu", free=None, short=False)
    error = inspection_failed(verdict(caught.value, at), budget=1)
    assert error.exit_code == 4
    with pytest.raises(ModelError, match=said):
        raise error


def test_a_probe_looks_at_its_own_batches(tmp_path):
    training = assemble(request(own("build_with_one_row"), tmp_path, seq_len=8, micro_batch=5))
    with pytest.raises(WrongBatch) as caught:
        training.batch(0, 5)
    assert caught.value.what == "rows"
    training.close()
