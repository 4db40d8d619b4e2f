"""The stream is fixed, the same whatever the micro-batch, and learnable."""

import pytest
import torch

from autotune.worker.build.assembly import assemble
from autotune.worker.data.packing import IGNORED
from autotune.worker.data.synthetic import stream
from autotune.worker.model import build_model
from tests.data.families import FAMILIES
from tests.data.requests import OWN, family, request

SEQ_LEN = 32
META = torch.device("meta")


def open_stream(model, seed=0, seq_len=SEQ_LEN):
    return stream(build_model(model, seq_len, META), seq_len, seed)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "vit"])
def test_a_sample_is_the_same_whatever_the_micro_batch(name):
    batch, again = open_stream(family(name)), open_stream(family(name))
    whole = batch(1, 4)
    single = [again(index, 1) for index in range(4, 8)]
    for key, value in whole.items():
        assert torch.equal(value, torch.cat([one[key] for one in single]))


def test_seeds_and_batches_differ():
    batch = open_stream(family("gpt2"))
    assert not torch.equal(batch(0, 2)["input_ids"], batch(1, 2)["input_ids"])
    assert not torch.equal(batch(0, 2)["input_ids"], open_stream(family("gpt2"), seed=1)(0, 2)["input_ids"])


@pytest.mark.parametrize("seq_len", [1, 5, 32, 50])
def test_every_sample_masks_as_many_tokens(seq_len):
    labels = open_stream(family("bert"), seq_len=seq_len)(0, 16)["labels"]
    counts = (labels != IGNORED).sum(dim=1)
    assert counts.tolist() == [max(1, seq_len // 7)] * 16


def test_masked_tokens_are_hidden_from_the_input_and_others_are_not_trained_on():
    batch = open_stream(family("bert"))(0, 4)
    masked = batch["labels"] != IGNORED
    assert len(batch["input_ids"][masked].unique()) == 1
    assert (batch["input_ids"][masked] != batch["labels"][masked]).all()


def test_special_tokens_are_never_used():
    config = {**FAMILIES["llama"], "vocab_size": 12}
    used = set(open_stream(family("llama", vocab_size=12))(0, 16)["input_ids"].unique().tolist())
    assert used.isdisjoint({config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]})


def test_a_users_batch_is_made_once_for_each_size_and_repeated():
    batch, again = open_stream(OWN), open_stream(OWN)
    first = batch(0, 3)
    assert first["tokens"].shape == (3, SEQ_LEN)
    assert torch.equal(first["tokens"], batch(5, 3)["tokens"])
    assert torch.equal(first["tokens"], again(0, 3)["tokens"])
    assert batch(0, 2)["tokens"].shape == (2, SEQ_LEN)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("name", [*FAMILIES, "own"])
def test_the_loss_falls_within_a_few_steps(name, optimizer, tmp_path):
    model = OWN if name == "own" else family(name)
    training = assemble(request(model, tmp_path, seq_len=SEQ_LEN, precision="bf16", optimizer=optimizer))
    losses = []
    for step in range(4):
        loss = training.loss(training.batch(step, 4))
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        losses.append(loss.item())
    assert loss.dtype == torch.float32
    assert losses[-1] < losses[0]
