"""The repeated transformer block is found in every family, and in models of other shapes."""

import pytest
import torch
from torch import nn

from autotune.errors import InputError
from autotune.worker.blocks import find_blocks
from autotune.worker.model import build_model
from tests.data.families import FAMILIES
from tests.data.own_model import Network, ResidualBlock
from tests.data.requests import family


class Block(nn.Module):
    def __init__(self, width=8, experts=0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 64 * width)


class CrossBlock(Block):
    def __init__(self, width=8):
        super().__init__(width)
        self.cross = nn.Linear(width, width)


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(2, 2)


def model(**children):
    """Return a module with the given children, in order."""
    parent = nn.Module()
    for name, child in children.items():
        setattr(parent, name, child)
    return parent


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_are_those_that_transformers_itself_marks(name):
    from transformers.modeling_layers import GradientCheckpointingLayer

    built = build_model(family(name), 32, torch.device("meta")).model
    marked = [module for module in built.modules() if isinstance(module, GradientCheckpointingLayer)]
    blocks = find_blocks(built)
    assert blocks is not None
    assert len(marked) >= 2
    assert list(blocks.modules) == marked
    assert blocks.class_name == type(marked[0]).__name__


def test_experts_inside_a_layer_are_not_blocks_although_they_are_larger_and_more():
    layers = nn.ModuleList(Block(experts=4) for _ in range(2))
    blocks = find_blocks(model(embed=nn.Embedding(10, 8), layers=layers))
    assert blocks is not None
    assert blocks.modules == tuple(layers)


def test_encoder_and_decoder_layers_are_found_together():
    encoder, decoder = nn.ModuleList([Block(), Block()]), nn.ModuleList([CrossBlock(), CrossBlock()])
    blocks = find_blocks(model(encoder=encoder, decoder=decoder))
    assert blocks is not None
    assert blocks.class_name == "Block,CrossBlock"
    assert blocks.modules == (*encoder, *decoder)


def test_repeated_small_parts_beside_the_layers_are_left_out():
    layers, adapters = nn.ModuleList([Block(), Block()]), nn.ModuleList([Adapter() for _ in range(9)])
    blocks = find_blocks(model(adapters=adapters, layers=layers))
    assert blocks is not None
    assert blocks.modules == tuple(layers)


def test_blocks_as_plain_attributes_are_found_even_beside_a_small_list():
    network = Network()
    network.adapters = nn.ModuleList([Adapter(), Adapter()])
    blocks = find_blocks(network)
    assert blocks is not None
    assert blocks.class_name == "ResidualBlock"
    assert blocks.modules == (network.first, network.second)


def test_two_towers_with_shared_embeddings_are_not_taken_for_blocks():
    table = nn.Embedding(1000, 8)
    towers = [model(embed=table, layers=nn.ModuleList([Block(), Block()])) for _ in range(2)]
    blocks = find_blocks(model(left=towers[0], right=towers[1]))
    assert blocks is not None
    assert blocks.class_name == "Block"
    assert len(blocks.modules) == 4


def test_a_single_layer_in_a_list_is_a_block():
    blocks = find_blocks(model(layers=nn.ModuleList([Block()])))
    assert blocks is not None
    assert len(blocks.modules) == 1


@pytest.mark.parametrize(
    "parent",
    [
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
        nn.ModuleList(nn.Linear(8, 8) for _ in range(12)),
        model(only=Adapter()),
    ],
)
def test_leaves_are_never_blocks(parent):
    assert find_blocks(parent) is None


def test_a_class_named_by_the_user_overrides_the_search():
    network = model(layers=nn.ModuleList(Block(experts=2) for _ in range(2)))
    blocks = find_blocks(network, "Expert")
    assert blocks is not None
    assert [type(module) for module in blocks.modules] == [Expert] * 4


def test_a_name_that_no_block_has_is_refused_with_the_names_there_are():
    with pytest.raises(InputError, match=r"ResidualBlok.*ResidualBlock"):
        find_blocks(Network(), "ResidualBlok")


def test_a_leaf_named_by_the_user_is_refused():
    with pytest.raises(InputError) as caught:
        find_blocks(nn.Sequential(ResidualBlock(4), ResidualBlock(4)), "Linear")
    assert caught.value.about == ("block_class",)
