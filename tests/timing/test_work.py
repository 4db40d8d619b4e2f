"""What a trace records of operators: FLOPs against formulas by hand, bytes, copies, collectives."""

import dataclasses

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from autotune.timeline.op_counts import Operator
from autotune.timeline.timeline import Timeline
from autotune.worker.tracing.exact_trace import exact_timeline
from autotune.worker.tracing.op_counter import NOTHING
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.tracing.trace import trace
from tests.memory.counted import SEQ_LEN, request


def done(run, *tensors, device="cpu"):
    """Return what a function of tensors makes operators do, in order."""
    with StorageRecorder(device, {}) as recorder, recorder.segment():
        fakes = [recorder.from_tensor(tensor) for tensor in tensors]
        recorder.mark("forward")
        run(*fakes)
    return [recorder.log.operators[call] for call in recorder.log.calls["forward"] if call != NOTHING]


def only(run, *tensors, device="cpu"):
    (operator,) = done(run, *tensors, device=device)
    return operator


def test_a_matrix_product_counts_its_multiplications_and_each_operand_once():
    left, right = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(16, 32, dtype=torch.bfloat16)
    moved = 2 * (8 * 16 + 16 * 32 + 8 * 32)
    assert only(torch.mm, left, right) == Operator("mm", "matmul", "bf16", 1, 2 * 8 * 16 * 32, moved)
    assert only(torch.mm, torch.ones(4, 4), torch.ones(4, 4)).math == "fp32"


def test_causal_attention_does_half_the_arithmetic():
    def attend(causal):
        def run(query):
            torch.ops.aten._scaled_dot_product_flash_attention(query, query, query, 0.0, causal, False)

        return only(run, torch.ones(2, 4, 64, 16))

    full, half = attend(False), attend(True)
    assert full.kind == half.kind == "attention"
    assert full.flops == 2 * 2 * (2 * 4 * 64 * 64 * 16)
    assert half.flops == full.flops // 2


def test_experts_multiply_the_tokens_that_they_are_given():
    tokens, experts = torch.ones(24, 16, dtype=torch.bfloat16), torch.ones(3, 16, 32, dtype=torch.bfloat16)
    offsets = torch.tensor([8, 16, 24], dtype=torch.int32)
    operator = only(torch.ops.aten._grouped_mm, tokens, experts, offsets)
    assert (operator.kind, operator.flops) == ("matmul", 2 * 24 * 16 * 32)


def test_views_and_empty_tensors_are_free():
    def run(x):
        return x.t(), x[1:], x.view(24), x.detach(), torch.empty_like(x)

    assert done(run, torch.ones(4, 6)) == []


def test_in_place_operators_write_what_they_change():
    x, y = torch.ones(100), torch.ones(100)
    assert only(lambda x, y: x.add_(y), x, y).bytes == 3 * 400
    assert only(lambda x, y: x.copy_(y), x, y).bytes == 2 * 400
    assert only(lambda x: x.zero_(), x).bytes == 400
    assert only(lambda x: torch.ones_like(x), x).bytes == 400


def test_a_lookup_reads_the_rows_that_it_returns():
    table, rows = torch.ones(1000, 8), torch.arange(10)
    assert (
        only(lambda table, rows: torch.embedding(table, rows), table, rows).bytes == 10 * 8 + 2 * 10 * 8 * 4
    )


def test_an_expanded_dimension_is_read_once():
    def run(x, row):
        return x * row.expand(50, 8)

    assert only(run, torch.ones(50, 8), torch.ones(8)).bytes == (2 * 50 * 8 + 8) * 4


def test_a_fused_optimizer_step_reads_parameter_gradient_and_state_and_writes_all_but_the_gradient():
    def step(weight):
        parameter = torch.nn.Parameter(weight)
        optimizer = torch.optim.AdamW([parameter], fused=True)
        parameter.grad = torch.ones_like(weight)
        optimizer.step()

    operator = next(op for op in done(step, torch.ones(1000)) if op.name == "_fused_adamw_")
    assert operator.bytes == pytest.approx(7 * 4000, abs=16)


def test_what_draws_random_numbers_draws_one_for_each_element_it_writes():
    def run(x):
        torch.nn.functional.dropout(x, 0.5, True)
        torch.rand_like(x)

    drawn = [operator for operator in done(run, torch.ones(8, 16)) if operator.kind == "random"]
    assert [operator.flops for operator in drawn] == [128, 128]
    assert [operator.bytes for operator in drawn] == [512, 512]


def test_copies_to_another_device_cross_the_host_link():
    there = only(lambda x: x.to("meta"), torch.ones(100), device="meta")
    assert (there.kind, there.bytes) == ("upload", 400)
    assert only(lambda x: x * 2, torch.ones(100), device="meta").kind == "host"


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_collectives_carry_their_whole_tensor_and_the_size_of_their_group():
    def talk(shard, whole):
        dist.all_reduce(whole)
        dist.all_reduce(shard, group=across)
        dist.all_gather_into_tensor(whole, shard)
        dist.reduce_scatter_tensor(shard, whole)

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        across = dist.new_group([0, 4])
        found = [
            (op.kind, op.ranks, op.bytes, op.stride) for op in done(talk, torch.ones(100), torch.ones(800))
        ]
    finally:
        dist.destroy_process_group()
    assert found == [
        ("all_reduce", 8, 3200, 1), ("all_reduce", 2, 400, 4), ("all_gather", 8, 3200, 1),
        ("reduce_scatter", 8, 3200, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("model", "precision"), [("tiny-gpt2", "fp32"), ("tiny-llama", "bf16")])
def test_work_is_affine_in_the_micro_batch(model, precision):
    timeline = trace(request(model, precision=precision))
    assert timeline.work.note == ""
    # A timeline for one micro-batch alone counts what really ran there.
    for micro_batch in (1, 7):
        exact = exact_timeline(request(model, precision=precision, micro_batch=micro_batch), 0.0)
        for phase in ("forward", "backward", "optimizer"):
            ours = sorted((op, count) for op, count in timeline.work.of(phase, micro_batch))
            assert tally(ours) == tally(exact.work.of(phase, micro_batch))


def tally(operators):
    counts = {}
    for operator, count in operators:
        counts[operator] = counts.get(operator, 0) + count
    return counts


def test_a_training_step_has_the_flops_of_its_matrix_products():
    timeline = trace(request())
    parameters = timeline.facts["parameters"]
    tokens = 4 * SEQ_LEN
    flops = timeline.work.flops(4)
    # 2 N a token forward and 4 N backward; embeddings multiply nothing here, attention and the rest come on top.
    assert flops["backward"] == pytest.approx(2 * flops["forward"], rel=0.25)
    kinds = {operator.kind for operator, _ in timeline.work.of("forward", 4)}
    assert kinds == {"memory", "matmul", "attention"}
    assert 0.5 < flops["forward"] / (2 * parameters * tokens) < 1.5
    recomputing = trace(request(checkpointing="full")).work.flops(4)
    assert recomputing["backward"] > flops["backward"] + 0.5 * flops["forward"]


def test_what_is_not_affine_is_said(tmp_path):
    source = """
import torch

class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        y = self.linear(x.flatten(0, 1))
        return (y @ y.t()).relu().sum()

def build():
    return Pairs(), lambda micro_batch, seq_len: {"x": torch.ones(micro_batch, 16, 64)}
"""
    (tmp_path / "pairs.py").write_text(source)
    from autotune.models.resolve import resolve

    spec = resolve("pairs.py:build", base=tmp_path)
    timeline = trace(request().model_copy(update={"model": spec}))
    assert "not affine" in timeline.work.note


def test_work_survives_the_cache():
    timeline = trace(request())
    again = Timeline.parse(timeline.dump())
    assert again.work == timeline.work
    assert dataclasses.asdict(again.work) == dataclasses.asdict(timeline.work)
