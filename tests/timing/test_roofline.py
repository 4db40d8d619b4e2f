"""Seconds from work by hand: which engine binds, what overlaps, what accumulation and sharding change."""

from dataclasses import replace

import pytest

from autotune.devices.hardware import find_hardware, table
from autotune.specs import DeviceSpeed, FileSpeed
from autotune.timeline.op_counts import MATH_TYPES, OpCounts, Operator, Operators
from autotune.timeline.step_events import Accumulated, Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.timing.collectives import LATENCY, Links, collectives
from autotune.timing.machine import ELEMENTWISE, FUSED, FUSED_RANDOM, Machine
from autotune.timing.roofline import DISK, Busy, Extra, busy, step_time

MACHINE = Machine(
    matrix=dict.fromkeys(MATH_TYPES, 1e12), attention=dict.fromkeys(MATH_TYPES, 5e11), memory=1e11,
    host_link=1e10, links=Links(within=2e10, across=1e10), host_memory=1e10, start=0.0, launch=1e-6,
)  # fmt: skip


def operator(kind="memory", flops=0, bytes=0, ranks=1):
    return Operator(kind, kind, "bf16", ranks, flops, bytes)


def timeline(**phases):
    """A training with one operator in each phase: 10 GFLOP and 1 GB a sample forward, twice that backward."""
    operators = Operators()
    operators.add(operator("matmul", 10**10, 10**9), 10**10, 10**9, 1)
    operators.add(operator("matmul", 2 * 10**10, 2 * 10**9), 2 * 10**10, 2 * 10**9, 1)
    operators.add(operator("memory", 0, 5 * 10**9), 0, 0, 1)
    micro = {"forward": [(0, 1)], "backward": [(1, 1)]}
    empty = StepEvents()
    return Timeline(
        device="cuda",
        slots=Slots([10**9], [0], [0], [0], [0]),
        modules=["model"],
        build=empty,
        micro=StepEvents(accumulated=[Accumulated(0, 0, 0, False)]),
        single=None,
        first_update=empty,
        update=empty,
        work=OpCounts(operators, micro, None, {"optimizer": [(2, 1)]}, **phases),
    )


def test_an_operator_takes_as_long_as_the_slower_of_arithmetic_and_memory():
    assert MACHINE.seconds(operator("matmul", 10**12, 10**9)) == 1.0
    assert MACHINE.seconds(operator("matmul", 10**9, 10**11)) == 1.0
    assert MACHINE.seconds(operator("attention", 10**12)) == 2.0
    assert MACHINE.seconds(operator("upload", bytes=10**10)) == 1.0
    assert MACHINE.seconds(operator("host", bytes=10**10)) == 1.0


def test_a_processor_draws_random_numbers_on_one_thread_and_in_compiled_kernels_on_all():
    speed = DeviceSpeed(
        matrix_flops={"fp32": 1e12}, attention_flops={"fp32": 1e12}, elementwise_flops=1e9, memory=1e11, operator=1e-9,
        random=1e8, threads=8,
    )  # fmt: skip
    machine = Machine.measured(speed)
    assert machine.seconds(operator("random", 10**8)) == pytest.approx(1.0)
    assert machine.seconds(operator("fused_random", 10**8)) == pytest.approx(FUSED_RANDOM / 8)
    assert machine.seconds(operator("fused_pointwise", 10**9)) == pytest.approx(1 / ELEMENTWISE / FUSED)
    # a record of before knows no such speed
    unknown = Machine.measured(speed.model_copy(update={"random": None}))
    assert unknown.seconds(operator("random", 10**8)) == unknown.seconds(operator("memory", 10**8))
    assert unknown.seconds(operator("fused_random", 10**8)) == unknown.seconds(operator("memory", 10**8))


def test_a_gpu_draws_random_numbers_while_it_moves_them():
    machine = Machine.of(find_hardware("h100-sxm-80gb"))
    assert machine.seconds(operator("random", 10**8, 10**9)) == machine.seconds(
        operator("memory", 10**8, 10**9)
    )


def test_engines_overlap_and_the_processor_does_not():
    time = busy(
        [(operator(bytes=10**11), 2), (operator("upload", bytes=10**10), 3), (operator("download"), 1)],
        MACHINE,
    )
    assert (time.compute, time.upload, time.seconds) == (2.0, 3.0, 3.0)
    # Launching is all that there is.
    assert busy([(operator(), 10**6)], MACHINE).seconds == pytest.approx(1.0)
    assert Busy(compute=1.0, host=2.0).seconds == 3.0


def test_a_step_is_composed_of_its_parts_at_any_micro_batch():
    time = step_time(timeline(), 4, MACHINE)
    parts = time.timing()
    assert parts.micro_step.mean == pytest.approx(4 * (0.01 + 0.02), rel=1e-3)
    assert parts.optimizer_step.mean == pytest.approx(0.05)
    assert parts.micro_step.half_width is None
    assert parts.global_step(3) == pytest.approx(3 * 4 * 0.03 + 0.05, rel=1e-3)


def test_accumulating_gradients_reads_two_and_writes_one():
    once, more = (step_time(timeline(), 4, MACHINE, accumulating=several) for several in (False, True))
    extra = more.timing().micro_step.mean - once.timing().micro_step.mean
    assert extra == pytest.approx(3 * 10**9 / 1e11, rel=1e-3)


def test_sharding_adds_collectives_and_takes_optimizer_work_away():
    found = collectives("ddp", 10**9, 10, 8, compute=2, reduce=4, synchronized=True)
    extra = Extra(last_micro_step={"backward": found}, optimizer_share=0.5)
    parts = step_time(timeline(), 2, MACHINE, extra=extra).timing()
    reduced = 2 * 7 / 8 * 4 * 10**9 / 2e10 + 10 * LATENCY
    assert parts.micro_step.mean == pytest.approx(0.06, rel=1e-3)
    assert parts.last_micro_step.mean == pytest.approx(0.02 + reduced, rel=1e-3)  # longer than backward
    assert parts.optimizer_step.mean == pytest.approx(0.025)


def test_the_reduction_that_ddp_makes_outside_of_operators_is_added_to_the_last_micro_step():
    alone = step_time(timeline(), 2, MACHINE).timing()
    facts = {"world_size": 8, "sharding": "ddp", "parameters": 10**9}
    spread = step_time(Timeline(**{**vars(timeline()), "facts": facts}), 2, MACHINE).timing()
    assert spread.micro_step == alone.micro_step
    reduced = 2 * 7 / 8 * 4 * 10**9 / 2e10
    assert spread.last_micro_step.mean == pytest.approx(0.02 + reduced, rel=0.02)
    short = Timeline(**{**vars(timeline()), "facts": {**facts, "reduce_dtype": "bf16"}})
    assert step_time(short, 2, MACHINE).last_backward.links == pytest.approx(reduced / 2, rel=0.03)
    traced = Timeline(**{**vars(timeline()), "facts": {**facts, "sharding": "fsdp2"}})
    assert step_time(traced, 2, MACHINE).timing() == alone


def test_hybrid_sharding_reduces_across_nodes_in_the_last_micro_step_alone():
    made = timeline()
    across = Operator("allreduce_", "all_reduce", "none", 8, 0, 10**9, 8)
    made.work.operators.add(across, 0, 0, 2)
    made.work.micro["backward"].append((len(made.work.operators.name) - 1, 1))
    facts = {"world_size": 64, "nodes": 8, "sharding": "hsdp"}
    parts = step_time(Timeline(**{**vars(made), "facts": facts}), 2, MACHINE)
    assert parts.backward.links == 0
    assert parts.last_backward.links == pytest.approx(2 * 7 / 8 * 1e9 / MACHINE.links.across + LATENCY)


@pytest.mark.parametrize(("sharding", "early"), [("zero1", False), ("zero2", True)])
def test_deepspeeds_reduction_is_traced_and_under_zero1_in_the_last_micro_step_alone(sharding, early):
    made = timeline()
    made.work.operators.add(Operator("allreduce_", "all_reduce", "none", 8, 0, 10**9), 0, 0, 2)
    made.work.micro["backward"].append((len(made.work.operators.name) - 1, 1))
    facts = {"world_size": 8, "sharding": sharding, "engine": "deepspeed", "parameters": 10**9}
    parts = step_time(Timeline(**{**vars(made), "facts": facts}), 2, MACHINE)
    assert parts.last_backward.links == pytest.approx(2 * 7 / 8 * 1e9 / 2e10 + LATENCY)
    assert parts.backward.links == (parts.last_backward.links if early else 0)


def test_a_timeline_without_work_or_that_does_not_cover_has_no_time():
    assert step_time(timeline(), 2, MACHINE) is not None
    assert step_time(timeline(), 1, MACHINE) is None  # micro-batch 1 was not traced
    bare = Timeline(**{**vars(timeline()), "work": None})
    assert step_time(bare, 2, MACHINE) is None
    exact = Timeline(**{**vars(timeline()), "exact": 4})
    assert step_time(exact, 3, MACHINE) is None


@pytest.mark.parametrize("row", table().hardware, ids=lambda row: row.id)
def test_every_gpu_of_the_table_is_a_machine_slower_than_its_data_sheet(row):
    machine = Machine.of(row)
    for precision, peak in row.peak_flops().items():
        assert 0.3 * peak < machine.matrix[precision] < peak
        assert machine.attention[precision] < peak
    assert set(machine.matrix) == set(MATH_TYPES)
    assert machine.memory < row.memory_gb_s * 1e9
    assert machine.links.within < (row.link_gb_s or row.host_gb_s) * 1e9 / 2


def test_a_type_that_the_hardware_lacks_runs_as_a_wider_one():
    volta, hopper = (Machine.of(find_hardware(name)) for name in ("v100-sxm-16gb", "h100-sxm-80gb"))
    assert volta.matrix["bf16"] == volta.matrix["tf32"] == volta.matrix["fp32"] < volta.matrix["fp16"]
    assert hopper.matrix["fp8"] == pytest.approx(2 * hopper.matrix["bf16"], rel=1e-3)


def test_rings_move_what_nccl_counts():
    links = Links(within=1e9, across=0.25e9, server=4)
    size = 1e9
    assert links.seconds("all_reduce", size, 4) == pytest.approx(2 * 3 / 4 + LATENCY)
    assert links.seconds("all_gather", size, 4) == pytest.approx(3 / 4 + LATENCY)
    assert links.seconds("broadcast", size, 4) == pytest.approx(1 + LATENCY)
    assert links.seconds("all_reduce", size, 1) == 0
    # Four network cards of a server carry the ring between servers together: as fast as the links within.
    assert links.seconds("all_gather", size, 8) == pytest.approx(7 / 8 + LATENCY)
    slow = Links(within=1e9, across=0.1e9, server=4)
    assert slow.seconds("all_gather", size, 8) == pytest.approx(7 / 8 / 0.4 + LATENCY)


def test_groups_that_meet_once_in_each_server_share_its_cards():
    links = Links(within=1e9, across=0.25e9, server=4)
    # Ranks 0, 4, 8, 12: one card of each server, while the other three carry other groups.
    assert links.seconds("all_reduce", 1e9, 4, stride=4) == pytest.approx(2 * 3 / 4 / 0.25 + LATENCY)
    assert links.seconds("all_reduce", 1e9, 4, stride=2) == pytest.approx(2 * 3 / 4 / 0.5 + LATENCY)
    assert links.seconds("all_reduce", 1e9, 2, stride=2) == pytest.approx(2 * 1 / 2 + LATENCY)
    assert MACHINE.in_nodes(8, 1).links == MACHINE.links
    assert MACHINE.in_nodes(8, 4).links.bandwidth(4) == 2 * MACHINE.links.across


def test_volumes_of_the_strategies():
    def volume(strategy, synchronized):
        """Return bytes that every rank sends for 1e6 parameters, in units of a parameter's 2 bytes."""
        found = collectives(strategy, 10**6, 10, 8, compute=2, reduce=2, synchronized=synchronized)
        factor = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
        return sum(factor[op.kind] * op.bytes * count for op, count in found) / (2 * 10**6)

    # ZeRO, section 7: 2 psi for data parallelism and ZeRO-1 and -2, 3 psi for ZeRO-3.
    assert [volume(name, True) for name in ("ddp", "zero1", "zero2", "zero3")] == [2, 2, 2, 3]
    assert [volume(name, False) for name in ("ddp", "zero1", "zero2", "zero3")] == [0, 0, 0, 3]


def offloading(place=2, category=3):
    """The same training on a processor, whose activations of 4 GB a sample leave for files, and come back."""
    found = timeline()
    slots = Slots([10**9, 10**9], [0, 4 * 10**9], [0, category], [0, place], [0, 0])
    return replace(found, device="cpu", slots=slots, micro=replace(found.micro, events=[1, ~1]))


def test_what_a_processor_offloads_is_copied_and_of_much_the_disk_is_waited_for():
    plain, leaving = timeline(), offloading()
    assert (leaving.activations_on_disk(1), leaving.activations_on_disk(2)) == (5 * 10**9, 9 * 10**9)
    processor = replace(MACHINE, files=FileSpeed(copy_speed=2e9, unwritten=10 * 10**9))
    alone = step_time(plain, 2, processor)
    copied = step_time(leaving, 2, processor)
    assert copied.forward.seconds == pytest.approx(alone.forward.seconds + 4.5)
    assert copied.last_forward == copied.forward
    assert (copied.backward, copied.optimizer) == (alone.backward, alone.optimizer)
    waiting = step_time(leaving, 5, processor)  # 21 GB, of which 11 are written meanwhile
    assert waiting.forward.seconds == pytest.approx(11e9 / DISK)
    assert step_time(leaving, 5, MACHINE) == step_time(plain, 5, MACHINE), "where nothing is known of files"


@pytest.mark.parametrize(("place", "category"), [(0, 3), (1, 3), (2, 1)])
def test_what_stays_or_is_made_once_is_not_copied_in_every_micro_step(place, category):
    assert offloading(place, category).activations_on_disk(2) == 0


def test_a_micro_batch_of_one_may_move_other_tensors():
    leaving = offloading()
    single = replace(leaving, single=replace(leaving.micro, events=[]))
    assert (single.activations_on_disk(1), single.activations_on_disk(2)) == (0, 9 * 10**9)
