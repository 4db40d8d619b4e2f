"""The trace of one rank among many: against real tensors, byte by byte, and against the formulas of ZeRO."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autotune.candidate import Candidate
from autotune.memory.closed_form import states
from autotune.techniques.axis import Context
from autotune.techniques.check import refusal
from autotune.timeline.step_events import CATEGORIES, PLACES
from autotune.worker.build import assembly, composition
from autotune.worker.replacing import replaced
from autotune.worker.techniques import offload_store
from autotune.worker.techniques.sharding import process_group, replicated
from autotune.worker.tracing.fakes import ranks as fake_ranks
from autotune.worker.tracing.kernel_workspace import ON_CPU
from autotune.worker.tracing.trace import trace
from tests.data.requests import family
from tests.memory.counted import InMemory, measured
from tests.memory.counted import request as plain
from tests.reasons import reasons, refused

HERE = Path(__file__).parent
SHARDINGS = ("ddp", "zero1", "zero2", "fsdp2")
GLOO = (torch.ops.c10d._allgather_base_.default, torch.ops.c10d._reduce_scatter_base_.default)


def request(world_size, model="tiny-llama", nodes=1, **fields):
    return plain(model, **fields).model_copy(update={"world_size": world_size, "nodes": nodes})


def held(timeline, phase, micro_batch=2):
    """Return the bytes on the device by category when the second step enters a phase."""
    program = timeline.program(micro_batch)
    start = next(start for start, name, step in program.marks if (name, step) == (phase, 2))
    sizes = timeline.sizes(micro_batch)
    alive = dict.fromkeys(CATEGORIES, 0)
    for event in program.events[:start]:
        slot = event if event >= 0 else ~event
        if PLACES[timeline.slots.place[slot]] == "device":
            alive[CATEGORIES[timeline.slots.category[slot]]] += sizes[slot] * (1 if event >= 0 else -1)
    return alive


@pytest.mark.parametrize(
    ("sharding", "precision", "reduce_dtype"),
    [(sharding, precision, "fp32") for sharding in (*SHARDINGS, "hsdp") for precision in ("fp32", "bf16")]
    + [(sharding, "fp32", "bf16") for sharding in ("ddp", "hsdp")],
)
def test_a_trace_counts_the_bytes_of_real_tensors(sharding, precision, reduce_dtype, monkeypatch, tmp_path):
    """Real tensors, real code, and ranks that do not exist: a peak that no other process's timing disturbs."""
    for operator in GLOO:  # gloo's own buffers, which the fake backend does not make
        monkeypatch.delitem(ON_CPU, operator)
    fields = {"sharding": sharding, "precision": precision, "reduce_dtype": reduce_dtype}
    ranks_and_nodes = (4, "tiny-llama", 2) if sharding == "hsdp" else (2,)
    timeline = trace(request(*ranks_and_nodes, **fields))
    without_ranks = [
        (process_group, "form_group", fake_ranks.form_first),
        (replicated, "DistributedDataParallel", fake_ranks._Replica),
    ]
    for micro_batch, micro_steps in ((3, 1), (5, 2)):
        probe = request(*ranks_and_nodes, micro_batch=micro_batch, **fields).model_copy(
            update={"folder": str(tmp_path)}
        )
        with replaced(without_ranks):
            real = measured(probe, micro_steps)
        assert timeline.allocated(micro_batch, accumulating=micro_steps > 1) == pytest.approx(real, rel=2e-4)


@pytest.mark.parametrize("sharding", ["zero2", "fsdp2"])
def test_adapters_beside_shards_are_traced_as_they_run(sharding, monkeypatch, tmp_path):
    for operator in GLOO:
        monkeypatch.delitem(ON_CPU, operator)
    fields = {"sharding": sharding, "adapters": "lora", "precision": "bf16"}
    # First: what peft imports makes tensors of its own, once in a process.
    traced = trace(request(2, **fields))
    probe = request(2, micro_batch=5, **fields).model_copy(update={"folder": str(tmp_path)})
    with replaced([(process_group, "form_group", fake_ranks.form_first)]):
        real = measured(probe, 2)
    assert traced.allocated(5, accumulating=True) == pytest.approx(real, rel=2e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cut_matrices_are_traced_byte_by_byte(precision, monkeypatch, tmp_path):
    for operator in GLOO:
        monkeypatch.delitem(ON_CPU, operator)
    fields = {"tensor_parallel": 2, "precision": precision}
    timeline = trace(request(2, **fields))
    assert timeline.exact is None
    probe = request(2, micro_batch=5, **fields).model_copy(update={"folder": str(tmp_path)})
    with replaced([(process_group, "form_group", fake_ranks.form_first)]):
        assert timeline.allocated(5, accumulating=True) == measured(probe, 2)
    expected = states(timeline.facts["parameters"] / 2, "fp32", "adamw")
    kept = held(timeline, "optimizer")
    assert kept["parameter"] == pytest.approx(expected.parameters, rel=0.01)
    assert kept["gradient"] == pytest.approx(expected.gradients, rel=0.01)
    assert kept["optimizer_state"] == pytest.approx(expected.optimizer_state, rel=0.01)


def test_two_blocks_sum_twice_a_pass_and_the_head_gathers():
    """One sum after attention and one after the feed-forward layer; backward one before each, and one at the head."""
    work = trace(request(2, tensor_parallel=2)).work
    found = {
        phase: sorted((one.kind, one.ranks, count) for one, count in work.of(phase, 2) if one.ranks > 1)
        for phase in ("forward", "backward", "optimizer")
    }
    assert found["forward"] == [("all_gather", 2, 1), ("all_gather", 2, 1), ("all_reduce", 2, 4)]
    assert found["backward"] == [("all_reduce", 2, 5)]
    assert not found["optimizer"]


@pytest.mark.parametrize("world_size", [2, 3])
def test_shards_in_files_are_traced_as_they_run(world_size, monkeypatch):
    """Of three ranks' shards some are shorter than others, and padded."""
    for operator in GLOO:
        monkeypatch.delitem(ON_CPU, operator)
    fields = {"sharding": "fsdp2", "offload": "full", "checkpointing": "full"}
    timeline = trace(request(world_size, **fields))
    changes = [
        (process_group, "form_group", fake_ranks.form_first),
        (offload_store, "MappedFiles", InMemory),
    ]
    with replaced(changes):
        real = measured(request(world_size, micro_batch=3, **fields))
    # Each block keeps the generator's state (5056 B), which no operator makes.
    assert timeline.allocated(3) == pytest.approx(real, abs=2 * 5056 + 1024)
    held = sum(states(timeline.facts["parameters"], "fp32", "adamw", "fsdp2", world_size))
    assert timeline.allocated(3, place="disk") == pytest.approx(held, rel=0.03)


def check_states(device):
    """Compare with the formulas at the points where they hold: between backward and update, or at the loss."""
    for world_size in (2, 8):
        for sharding in SHARDINGS:
            timeline = trace(request(world_size, device=device, sharding=sharding, precision="bf16"))
            assert (timeline.facts["world_size"], timeline.facts["sharding"]) == (world_size, sharding)
            assert timeline.exact is None
            parameters = timeline.facts["parameters"]
            expected = states(parameters, "fp32", "adamw", sharding, world_size)
            before_update = held(timeline, "optimizer")
            # FSDP2 keeps parameters in shards between steps under ZeRO-2 too; DDP's buckets last.
            kept = states(
                parameters, "fp32", "adamw", "fsdp2" if sharding == "zero2" else sharding, world_size
            )
            assert before_update["parameter"] == pytest.approx(kept.parameters, rel=0.03)
            assert before_update["gradient"] == pytest.approx(expected.gradients, rel=0.03)
            # ZeRO-1 gives whole parameters to ranks, the largest to rank 0.
            assert before_update["optimizer_state"] == pytest.approx(expected.optimizer_state, rel=0.06)
            gathered = held(timeline, "backward")["parameter"] - before_update["parameter"]
            if sharding == "zero2":
                assert gathered == pytest.approx(2 * parameters, rel=0.03)
            elif sharding == "fsdp2":  # embeddings alone, which are the head too
                outside = 2 * 512 * 64
                assert outside <= gathered < outside + 4096
            else:
                assert gathered == 0


def test_each_rank_keeps_what_zero_says_on_the_cpu():
    check_states("cpu")


def check_hybrid(device):
    """Sixty-four ranks in eight nodes keep what eight do, gather and scatter inside a node, and reduce across."""
    timeline = trace(request(64, nodes=8, device=device, sharding="hsdp", precision="bf16"))
    assert (timeline.facts["nodes"], timeline.exact) == (8, None)
    kept, found = (
        states(timeline.facts["parameters"], "fp32", "adamw", "fsdp2", 8),
        held(timeline, "optimizer"),
    )
    assert found["parameter"] == pytest.approx(kept.parameters, rel=0.03)
    assert found["gradient"] == pytest.approx(kept.gradients, rel=0.03)
    assert found["optimizer_state"] == pytest.approx(kept.optimizer_state, rel=0.03)
    talk = {(op.kind, op.ranks, op.stride) for op, _ in timeline.work.of("backward", 2) if op.ranks > 1}
    assert talk == {("all_gather", 8, 1), ("reduce_scatter", 8, 1), ("all_reduce", 8, 8)}


def test_hybrid_sharding_keeps_what_one_node_shares_out():
    check_hybrid("cpu")


def check_gathered(device):
    """Beside its own shards a rank holds one block at a time, or with ZeRO-2 all that backward has yet to use."""
    found = {}
    for sharding in ("zero2", "fsdp2"):
        for layers in (4, 8):
            model = family("llama", num_hidden_layers=layers)
            probe = request(8, device=device, sharding=sharding, precision="bf16", checkpointing="full")
            timeline = trace(probe.model_copy(update={"model": model}))
            found[sharding, layers] = held(timeline, "backward")["parameter"]
            found[layers] = timeline.facts["parameters"]
    four_layers = found[8] - found[4]
    grown = {sharding: found[sharding, 8] - found[sharding, 4] for sharding in ("zero2", "fsdp2")}
    assert grown["fsdp2"] == pytest.approx(four_layers * 4 / 8, rel=0.03)  # its shards alone
    assert grown["zero2"] == pytest.approx(four_layers * (4 / 8 + 2), rel=0.03)


def test_what_is_gathered_block_by_block_goes_away_again():
    check_gathered("cpu")


def test_a_reduction_in_bf16_sends_half():
    def sent(**fields):
        timeline = trace(request(4, nodes=2, sharding="hsdp", precision="fp32", **fields))
        return {op.kind: op.bytes for op, _ in timeline.work.of("backward", 2) if op.ranks > 1}

    whole, half = sent(), sent(reduce_dtype="bf16")
    assert half == {
        **whole,
        "reduce_scatter": whole["reduce_scatter"] // 2,
        "all_reduce": whole["all_reduce"] // 2,
    }


def test_gloo_needs_a_copy_of_what_it_gathers_and_reduces(monkeypatch):
    def count(category):
        timeline = trace(request(2, sharding="fsdp2", precision="fp32"))
        return timeline.slots.category.count(CATEGORIES.index(category))

    with_gloo = count("workspace")
    for operator in GLOO:
        monkeypatch.delitem(ON_CPU, operator)
    # Two blocks gathered twice and the rest once, and each reduced once; traced at micro-batches 2, 3 and 1.
    assert with_gloo - count("workspace") >= 5 + 3


def test_illegal_combinations_are_told_before_anything_is_launched():
    def told(world_size=2, kind="cuda", nodes=1, **fields):
        return reasons(Candidate(**fields), Context(world_size=world_size, kind=kind, nodes=nodes))

    ranks, groups = ("sharding", "context"), ("tensor_parallel", "context")
    whole = ("offload", "axes", "sharding")
    assert told(world_size=1) == []
    assert told() == [ranks]
    assert told(world_size=1, sharding="ddp") == [ranks]
    assert told(sharding="zero1", offload="optimizer") == [("offload", "axes", "engine", "sharding")]
    assert told(sharding="ddp", offload="full") == [whole]
    assert told(sharding="zero2", offload="full") == [whole]
    assert told(sharding="ddp", optimizer_in_backward=True) == [("optimizer_in_backward", "axes", "sharding")]
    assert told(sharding="fsdp2", optimizer="adafactor") == [("optimizer", "axes", "sharding")]
    assert told(sharding="fsdp2", engine="deepspeed") == [("engine", "axes", "sharding")]
    assert told(sharding="zero3") == [("sharding", "axes", "engine")]
    flat = told(sharding="zero2", engine="deepspeed", optimizer="adafactor")
    assert flat == [("optimizer", "axes", "sharding"), ("engine", "axes", "optimizer")]
    assert told(sharding="zero2", engine="deepspeed", loss="chunked") == []
    assert told(sharding="zero1", engine="deepspeed", offload="optimizer") == []
    assert told(sharding="zero3", engine="deepspeed", offload="full") == []
    assert told(sharding="zero2", engine="deepspeed", offload="full") == [whole]
    assert told(tensor_parallel=2) == []
    assert told(world_size=3, tensor_parallel=2) == [groups]
    assert told(world_size=4, tensor_parallel=2) == [groups]
    assert told(world_size=8, nodes=4, tensor_parallel=4, sharding="fsdp2") == [groups]
    assert told(world_size=8, nodes=2, tensor_parallel=4, sharding="fsdp2") == []
    assert told(world_size=4, tensor_parallel=2, sharding="fsdp2") == []
    assert told(tensor_parallel=2, sharding="fsdp2") == [groups]
    assert told(world_size=4, tensor_parallel=2, sharding="ddp") == [("tensor_parallel", "axes", "sharding")]
    assert told(tensor_parallel=2, precision="fp16") == [("tensor_parallel", "axes", "precision")]
    assert told(sharding="fsdp2", offload="full") == []
    assert told(world_size=1, reduce_dtype="bf16") == [("reduce_dtype", "axes", "sharding")]
    reduced = told(sharding="zero2", engine="deepspeed", reduce_dtype="bf16")
    assert reduced == [("reduce_dtype", "axes", "engine")]
    assert told(sharding="ddp", reduce_dtype="bf16", precision="fp32") == []
    assert told(sharding="hsdp") == [ranks]
    assert told(sharding="hsdp", nodes=2) == [ranks]
    assert told(sharding="hsdp", world_size=4, nodes=2, offload="full") == []
    assert told(sharding="hsdp", world_size=4, nodes=2, offload="full", kind="cpu") == []
    assert told(sharding="fsdp2", offload="full", kind="cpu") == []
    on_host = told(sharding="fsdp2", offload="full", offload_to="host", kind="cpu")
    assert on_host == [("offload_to", "context")]
    for sharding in ("ddp", "zero2", "fsdp2"):
        assert told(sharding=sharding, offload="optimizer", kind="cpu") == []


def test_ranks_that_do_not_match_are_told_with_their_numbers():
    def told(world_size, nodes=1, **fields):
        return refusal(Candidate(**fields), Context(world_size=world_size, kind="cuda", nodes=nodes))

    assert "2 ranks need a sharding" in told(2)
    assert "--gpus" in told(1, sharding="ddp")
    assert "2 ranks of one node, or a multiple, and there are 3" in told(3, tensor_parallel=2)
    assert "2 groups of 2 ranks need a sharding" in told(4, tensor_parallel=2)
    assert "each node has 2" in told(8, nodes=4, tensor_parallel=4, sharding="fsdp2")
    assert "2 ranks make up one" in told(2, tensor_parallel=2, sharding="fsdp2")
    assert "that is fsdp2" in told(2, sharding="hsdp")
    assert "that is ddp" in told(2, sharding="hsdp", nodes=2)


def in_a_process(case):
    pytest.importorskip("deepspeed", reason="the deepspeed package is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.on_deepspeed", case], cwd=HERE.parent.parent,
        env={**os.environ, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_trace_counts_the_bytes_of_deepspeeds_engine_on_real_tensors():
    for traced, real in in_a_process("cpu"):
        assert traced == pytest.approx(real, rel=2e-4)


@pytest.mark.slow
def test_the_rank_of_deepspeed_that_holds_most_is_the_one_that_is_traced():
    """Under ZeRO-2 each takes memory for its gradients when the first comes, the last rank at the start of backward."""
    found = in_a_process("ranks")
    for traced, real in found.values():
        assert traced == pytest.approx(max(real), rel=2e-4)
    _, (first, *_, last) = found["zero2"]
    assert last > 1.02 * first


@pytest.mark.slow
def test_deepspeed_is_traced_for_gpus_and_shares_out_what_zero_says():
    parameters, on_two, on_eight, exact, moved, accumulating = in_a_process("cuda")
    assert exact is None
    # Parameters and gradients in bf16, masters and two moments in fp32.
    shared, less = (states(parameters, "bf16", "adamw", "zero3", ranks) for ranks in (2, 8))
    assert on_two - on_eight == pytest.approx(shared.total - less.total, rel=0.01)
    # Offload moves masters, two moments and gradients in fp32 to the host, with a copy of the parameters in bf16 on its
    # way back, each of a shard; and where micro-steps accumulate, the shard's gradients in bf16.
    assert moved == pytest.approx(18 * parameters / 2, rel=0.05)
    assert accumulating - moved == pytest.approx(2 * parameters / 2, rel=0.1)


@pytest.mark.slow
def test_deepspeeds_engine_is_traced_through_all_blocks():
    """It sees all parameters, so what few blocks leave out would differ: zero1 and zero2 ended without a trace."""
    assert all("an engine of its own" in why for why in in_a_process("blocks"))


def test_deepspeed_is_refused_where_it_is_missing(monkeypatch):
    probe = request(2, sharding="zero2", engine="deepspeed")
    monkeypatch.setattr(composition, "find_spec", lambda name: None)
    for build in (trace, assembly.assemble):
        with refused("engine", "package"):
            build(probe)
