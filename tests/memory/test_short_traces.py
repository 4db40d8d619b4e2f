"""A trace through few of a model's blocks is the trace through all of them."""

from pathlib import Path

import pytest

from autotune.specs import ModelSpec
from autotune.worker.tracing.trace import trace
from tests.data.requests import OWN, family, request

DEPTH = {"gpt2": "n_layer", "opt": "num_hidden_layers", "t5": "num_layers"}
BLOCKS = 7
DEEPER = {"gemma2": 11}
"""Of blocks that attend in turn to all and to a window, few are a few of each."""
TECHNIQUES = [
    {"checkpointing": "full"}, {"checkpointing": "selective"}, {"checkpointing": "alternate"},
    {"checkpointing": "offloaded"}, {"loss": "chunked"}, {"activation_offload": True}, {"attention": "eager"},
    {"adapters": "lora"}, {"optimizer": "adafactor"}, {"optimizer_kernel": "foreach"}, {"offload": "optimizer"},
    {"precision": "fp16"}, {"precision": "bf16-pure"},
]  # fmt: skip
SHARDED = [
    {"sharding": "fsdp2"}, {"sharding": "zero2"}, {"sharding": "fsdp2", "checkpointing": "full"},
    {"sharding": "fsdp2", "reduce_dtype": "bf16"}, {"tensor_parallel": 2},
]  # fmt: skip


def ran(timeline):
    return timeline.facts["blocks"]


def grown(timeline, micro_batch, accumulating):
    """Return where in a training memory stands when it has grown: what goes in a row goes in no certain order."""
    program = timeline.program(micro_batch, accumulating)
    curve = timeline.curve(micro_batch, accumulating)
    return [place for event, place in zip(program.events, curve, strict=True) if event >= 0]


def compare(model, device="cpu", ranks=1, **fields):
    asked = request(model, Path(), device=device, **{"precision": "bf16", **fields})
    asked = asked.model_copy(update={"evaluation": True, "world_size": ranks})
    whole, short = trace(asked, short=False), trace(asked)
    for micro_batch in (1, 2, 7):
        for accumulating in (False, True):
            assert short.allocated(micro_batch, accumulating) == whole.allocated(micro_batch, accumulating)
            assert grown(short, micro_batch, accumulating) == grown(whole, micro_batch, accumulating)
        ours, theirs = short.peak(micro_batch), whole.peak(micro_batch)
        assert (ours.bytes, ours.phase, ours.breakdown) == (theirs.bytes, theirs.phase, theirs.breakdown)
        assert short.work.flops(micro_batch) == whole.work.flops(micro_batch)
        for phase in ("forward", "backward", "optimizer"):
            assert sorted(short.work.of(phase, micro_batch)) == sorted(whole.work.of(phase, micro_batch))
    assert (short.evaluation is None) == (whole.evaluation is None)
    if whole.evaluation is not None:
        assert short.evaluated(2, 9) == whole.evaluated(2, 9)
    return whole, short


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "mixtral", "qwen3", "gemma2", "gpt_neox", "opt", "bert", "vit"]
)
def test_every_family_is_traced_through_few_of_its_blocks(name):
    blocks = DEEPER.get(name, BLOCKS)
    whole, short = compare(family(name, **{DEPTH.get(name, "num_hidden_layers"): blocks}))
    assert ran(short) == f"{9 if name in DEEPER else 4} of {blocks}"
    assert ran(whole) == "all: asked for"


@pytest.mark.parametrize("fields", TECHNIQUES, ids=lambda fields: "-".join(map(str, *fields.items())))
def test_every_technique_is_the_same_of_few_blocks(fields):
    _, short = compare(family("llama", num_hidden_layers=BLOCKS), **fields)
    assert ran(short) == f"4 of {BLOCKS}"


@pytest.mark.parametrize("fields", SHARDED, ids=lambda fields: "-".join(map(str, fields.values())))
def test_sharded_blocks_are_the_same_of_few(fields):
    """FSDP2's blocks gather the one before them ahead of time, so one more of them runs."""
    _, short = compare(family("llama", num_hidden_layers=BLOCKS), ranks=2, **fields)
    assert ran(short) == f"{4 if 'tensor_parallel' in fields else 5} of {BLOCKS}"


def test_an_encoder_with_a_decoder_is_traced_whole():
    _, short = compare(family("t5", num_layers=5, num_decoder_layers=5))
    assert ran(short).startswith("all: ")


def test_a_model_of_the_users_own_is_the_same(tmp_path):
    compare(OWN, precision="fp32")


def test_what_collects_something_of_every_block_is_traced_whole():
    """The loss of a router adds up what every block said of its experts."""
    model = family("mixtral", num_hidden_layers=BLOCKS, output_router_logits=True)
    _, short = compare(model)
    assert ran(short) == "all: block 1 releases in backward what was made outside of blocks"


OWN_STACK = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(9))

    def forward(self, tokens):
        x, seen = self.embed(tokens), []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        {collect}
        return dict(loss=nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten()))

def make_batch(micro_batch, seq_len):
    return dict(tokens=torch.randint(32, (micro_batch, seq_len)))

def build():
    return Stack(), make_batch
"""


GROWS = "what is made beside blocks grows with their number"


@pytest.mark.parametrize(
    ("name", "collect", "ran_blocks"),
    [
        ("plain_stack", "", "4 of 9"),
        ("joining_stack", "x = x + torch.cat(seen, -1).detach().mean()", f"all: {GROWS}"),
        ("reaching_stack", "x = x + seen[6]", "all: through few blocks it fails: IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_a_model_that_counts_on_all_of_its_blocks_is_traced_whole(tmp_path, name, collect, ran_blocks):
    (tmp_path / f"{name}.py").write_text(OWN_STACK.format(collect=collect))
    model = ModelSpec(name=f"{name}:build", source="function", path=str(tmp_path))
    _, short = compare(model, precision="fp32")
    assert ran(short) == ran_blocks
