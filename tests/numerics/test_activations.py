"""Activations that rest elsewhere, or are made again, are the same activations."""

from contextlib import closing

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.candidate import Candidate
from autotune.specs import ModelSpec
from autotune.worker.blocks import find_blocks
from autotune.worker.build.assembly import assemble
from autotune.worker.techniques import activation_offload
from autotune.worker.techniques.checkpointing import checkpoint_blocks
from autotune.worker.techniques.mapped_files import MappedFiles, is_mapped
from tests.data.requests import family, request
from tests.numerics.runs import CHECKPOINTED, COPIED, MAPPED, MODELS, plain, train
from tests.reasons import refused


@pytest.fixture
def all_sizes(monkeypatch):
    """Let the tiny models' activations count as large."""
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 10)


@pytest.mark.parametrize("files", [MAPPED, COPIED])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "alternate", "one-full", "full"])
@pytest.mark.parametrize("model", MODELS)
def test_activation_offload_changes_no_bit(model, checkpointing, precision, files, all_sizes):
    run = train(
        model, files=files, activation_offload=True, **CHECKPOINTED[checkpointing], precision=precision
    )
    assert run == plain(model, precision)


@pytest.mark.parametrize("files", [MAPPED, COPIED])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["one-offloaded", "offloaded"])
@pytest.mark.parametrize("model", MODELS)
def test_offloaded_checkpointing_changes_no_bit(model, checkpointing, precision, files, all_sizes):
    run = train(model, files=files, **CHECKPOINTED[checkpointing], precision=precision)
    assert run == plain(model, precision)


def test_offloaded_checkpointing_keeps_the_blocks_inputs_alone_in_files(tmp_path, monkeypatch, all_sizes):
    made = []
    copy_of = MappedFiles.copy_of
    monkeypatch.setattr(
        MappedFiles, "copy_of", lambda files, tensor: made.append(tensor.nbytes) or copy_of(files, tensor)
    )
    with closing(assemble(request(family("llama"), tmp_path, checkpointing="offloaded"))) as training:
        batch = training.batch(0, 4)
        training.loss(batch).backward()
        config = training.model.config
    hidden = 4 * batch["input_ids"].shape[1] * config.hidden_size * 4
    assert [size for size in made if size == hidden] == [hidden] * config.num_hidden_layers
    assert sum(made) <= hidden * (config.num_hidden_layers + 1)  # masks and positions beside them


@pytest.mark.parametrize("offload", ["optimizer", "full"])
@pytest.mark.parametrize("files", [MAPPED, COPIED])
def test_activation_offload_goes_with_the_other_offloads(files, offload, all_sizes):
    assert train("gpt2", files=files, activation_offload=True, offload=offload, precision="fp32") == plain(
        "gpt2", "fp32"
    )


def test_what_forward_saves_lives_in_files_and_parameters_do_not(tmp_path, monkeypatch, all_sizes):
    made = []
    copy_of = MappedFiles.copy_of

    def noticed(files, tensor):
        made.append(copy_of(files, tensor))
        return made[-1]

    monkeypatch.setattr(MappedFiles, "copy_of", noticed)
    with closing(assemble(request(family("llama"), tmp_path, activation_offload=True))) as training:
        parameters = list(training.model.parameters())
        loss = training.loss(training.batch(0, 4))
        kept = [value for node in nodes(loss) for value in saved(node) if value.dim() > 1]
        large = [value for value in kept if value.nbytes >= 4 << 10 and value.shape[0] % 4 == 0]
        own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        others = [value for value in large if value.untyped_storage().data_ptr() not in own]
        casts = {parameter.shape for parameter in parameters} | {
            p.T.shape for p in parameters if p.dim() == 2
        }
        assert any(is_mapped(value) for value in others)
        assert all(is_mapped(value) or value.shape in casts for value in others)
        assert not any(is_mapped(parameter) for parameter in parameters)
        loss.backward()
    # Queries, keys and values are views of one tensor each: a storage is moved once.
    assert len({tensor.data_ptr() for tensor in made}) == len(made)
    assert not list(tmp_path.iterdir())


def nodes(loss):
    seen, pending = set(), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [source for source, _ in node.next_functions]
    return seen


def saved(node):
    """Return what a node of autograd's graph holds, unpacked."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    return [value for name in names if isinstance(value := getattr(node, name), torch.Tensor)]


class Ran(TorchDispatchMode):
    """The names of the operators that really ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def test_selective_checkpointing_multiplies_no_matrices_again(tmp_path):
    def products(checkpointing):
        training = assemble(request(family("gpt2"), tmp_path, checkpointing=checkpointing, precision="fp32"))
        loss = training.loss(training.batch(0, 2))
        with Ran() as ran:
            loss.backward()
        return (
            sum(name in {"mm", "addmm"} for name in ran.names),
            sum(name.startswith("_scaled_dot_product") and "backward" not in name for name in ran.names),
            sum(name == "native_layer_norm" for name in ran.names),
        )

    plainly, selective, full = (products(how) for how in ("none", "selective", "full"))
    assert selective[:2] == plainly[:2]
    assert selective[2] == full[2] > plainly[2]
    assert full[0] > selective[0]


@pytest.mark.parametrize("how", ["selective", "full"])
@pytest.mark.parametrize("count", ["all", 1, 5])
def test_so_many_blocks_are_checkpointed_from_the_first_on(how, count):
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(6))
    )
    blocks = find_blocks(model)
    assert len(blocks.modules) == 6
    checkpoint_blocks(blocks, Candidate(checkpointing=how, checkpointed_blocks=count))
    first = 6 if count == "all" else count
    assert [hasattr(block.forward, "func") for block in blocks.modules] == [True] * first + [False] * (
        6 - first
    )


@pytest.mark.parametrize("count", [2, 3])
def test_all_blocks_have_one_name_and_more_there_are_none(tmp_path, count):
    asked = request(family("gpt2", n_layer=2), tmp_path, checkpointing="full", checkpointed_blocks=count)
    said = f"2 blocks, and {count} are asked for: checkpointed blocks are `all`, or a"
    with refused("checkpointed_blocks", "context", match=said):
        assemble(asked)


def test_frozen_weights_stay_where_they_are(all_sizes, tmp_path, monkeypatch):
    """A product with a frozen weight saves a view of it, of which autograd has no history."""
    moved = []
    copy_of = MappedFiles.copy_of
    monkeypatch.setattr(
        MappedFiles, "copy_of",
        lambda files, tensor: moved.append(tensor.untyped_storage().data_ptr()) or copy_of(files, tensor),
    )  # fmt: skip
    probe = request(family("mixtral"), tmp_path, adapters="lora", activation_offload=True, precision="fp32")
    with closing(assemble(probe)) as training:
        training.loss(training.batch(0, 4)).backward()
        weights = {p.untyped_storage().data_ptr() for p in training.model.parameters()}
    assert moved
    assert weights.isdisjoint(moved)


def test_alternate_checkpointing_makes_every_second_product_again(tmp_path):
    def products(how):
        with closing(assemble(request(family("llama"), tmp_path / how, checkpointing=how))) as training:
            counting = Products()
            loss = training.loss(training.batch(0, 2))
            with counting:
                loss.backward()
            return counting.count

    (tmp_path / "x").parent.mkdir(exist_ok=True)
    none, selective, alternate, full = map(products, ("none", "selective", "alternate", "full"))
    assert none == selective < alternate < full
    assert alternate - none == (full - none) // 2


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("checkpointing", ["selective", "alternate"])
def test_experts_whose_bias_is_added_in_place_are_multiplied_again(checkpointing, tmp_path):
    """transformers adds it to the product itself, which is what would be kept: it would be added twice."""
    config = {
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
    }  # fmt: skip
    model = ModelSpec(name="gpt-oss", source="config", config=config)

    def gradients(how):
        with closing(assemble(request(model, tmp_path, checkpointing=how, precision="fp32"))) as training:
            training.loss(training.batch(0, 2)).backward()
            return [parameter.grad for parameter in training.model.parameters()]

    for plainly, again in zip(gradients("none"), gradients(checkpointing), strict=True):
        assert torch.equal(plainly, again)
