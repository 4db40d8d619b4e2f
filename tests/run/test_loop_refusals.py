"""What the loop does not launch: what device, model, disk or batch rule out."""

from __future__ import annotations

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError, NoDiskSpace, NothingFits, RunInUse
from autotune.probe.protocol import Inspection
from autotune.run.folder import create_run
from autotune.run.journal import Journal, read_record
from autotune.run.loop import tune
from autotune.run.preflight import Preflight
from autotune.search.context import SearchContext
from autotune.search.shipped import load_space
from autotune.specs import Goal, ModelSpec
from autotune.testing.arithmetic import Arithmetic
from autotune.units import GIB
from tests.fakes.executor import FACTS, ArithmeticExecutor
from tests.fakes.runs import make_spec, start


def test_a_model_that_cannot_be_cut_is_not_launched_to_find_out(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    spec = make_spec()
    spec = spec.model_copy(
        update={
            "goal": Goal(target="6400", seq_len=100, headroom=0.0, gpus=2),
            "space": load_space("tensor_parallel").model_dump(mode="json"),
        }
    )
    executor.inspection = Inspection(facts=FACTS.model_copy(update={"divided": {"num_key_value_heads": 3}}))
    paths = create_run(spec, tmp_path)
    best = tune(spec, paths, executor)
    assert best.candidate.sharding == "fsdp2"
    refused = [trial for trial in read_record(paths.journal).history if trial.outcome.kind == "unsupported"]
    assert [trial.candidate.tensor_parallel for trial in refused] == [2]
    assert (refused[0].outcome.axis, refused[0].outcome.cause) == ("tensor_parallel", "context")
    assert all(candidate.tensor_parallel == 1 for _, candidate in executor.launched)


@pytest.mark.parametrize("kind", ["inspect", "train", "prove"])
def test_a_full_disk_stops_the_run_and_is_forgotten_once_there_is_room(tmp_path, kind):
    undisturbed, _ = start(tmp_path / "undisturbed", ArithmeticExecutor(Arithmetic(budget=1000)))
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    whole, launched = executor.run, []

    def full(request, folder, **rest):
        launched.append(request.kind)
        if request.kind == kind and launched.count(kind) == (
            1 if kind == "inspect" else 2 if kind == "train" else 1
        ):
            raise NoDiskSpace("disk full in saving a checkpoint: /runs, 2 B were to be written, 1 B are free")
        return whole(request, folder, **rest)

    executor.run = full
    with pytest.raises(NoDiskSpace) as caught:
        tune(spec, paths, executor)
    assert caught.value.exit_code == 1
    interrupted = read_record(paths.journal).entries[-1]
    assert (interrupted.type, interrupted.why) == ("interrupted", "disk full")
    best = tune(spec, paths, executor)
    assert best.candidate == undisturbed.candidate
    assert best.unknown == ()
    assert launched.count("prove") == (2 if kind == "prove" else 1)
    assert all(proof.passed for proof in read_record(paths.journal).proofs)


def test_room_for_a_checkpoint_is_looked_for_before_the_proof(tmp_path):
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    executor = ArithmeticExecutor(Arithmetic(budget=1000), room=119)  # parameters and two moments take 120
    said = r"the proof of probe 6 writes 120 B .*, and the disk of .*probes.* has 119 B free; make room there"
    for _ in range(4):  # as often as one likes: it is no try
        with pytest.raises(NoDiskSpace, match=said):
            tune(spec, paths, executor)
    assert all(kind != "prove" for kind, _ in executor.launched)
    assert not read_record(paths.journal).proofs
    executor.room = 120
    assert tune(spec, paths, executor).proof.passed


def test_offload_that_disk_or_host_cannot_hold_is_refused_before_launching(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=300), room=50)
    with pytest.raises(NothingFits):
        start(tmp_path, executor)
    assert all(candidate.offload == "none" for _, candidate in executor.launched)
    record = read_record(next(tmp_path.iterdir()) / "journal.jsonl")
    refused = [trial for trial in record.history if trial.candidate.offload != "none"]
    assert refused
    assert {(trial.outcome.axis, trial.outcome.cause) for trial in refused} == {("offload", "room")}


def test_a_model_that_the_machine_cannot_hold_while_it_is_built_is_refused_before_launching(tmp_path):
    spec = make_spec()
    space = load_space("everything").model_dump(mode="json")
    spec = spec.model_copy(update={"goal": spec.goal.model_copy(update={"gpus": 2}), "space": space})
    sharded = Candidate(sharding="fsdp2")
    for room, fits in ((20, True), (19, False)):  # of each rank, for 40 bytes of parameters
        executor = ArithmeticExecutor(Arithmetic(budget=300), room=room)
        context = SearchContext.of(spec, FACTS, 300, executor.describe())
        refused = Preflight(context, executor, tmp_path).refusal(sharded)
        assert fits == (refused is None)
        assert fits or (refused.cause, refused.reason[:42]) == (
            "room",
            "building the model takes 40 B of the disk ",
        )


def test_an_impossible_batch_is_refused_before_any_probe(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    spec = make_spec().model_copy(update={"goal": Goal(target="64", seq_len=100)})
    with pytest.raises(InputError) as caught:
        tune(spec, create_run(spec, tmp_path), executor)
    assert caught.value.about == ("target_global_batch",)
    assert [kind for kind, _ in executor.launched] == ["inspect"]


def test_a_run_under_way_is_refused_to_a_second_tuner(tmp_path):
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    with Journal(paths.journal, paths.lock), pytest.raises(RunInUse):
        tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))


def test_fp8_is_refused_where_nothing_multiplies_it_and_nothing_is_launched(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.alter_device(kind="cuda")
    space = (
        "name: mine\ndescription: fp8, else bf16\naxes: {precision: [fp8, bf16]}\ngraph:\n  start: small\n  nodes:\n"
        "    small: {title: FP8, set: {precision: fp8}, next: {unsupported: bare}}\n"
        "    bare: {title: BF16, set: {precision: bf16}}\n"
    )
    best, paths = start(tmp_path, executor, space_text=space)
    refused = read_record(paths.journal).history[0]
    assert (refused.candidate.precision, best.candidate.precision) == ("fp8", "bf16")
    assert (refused.outcome.axis, refused.outcome.cause) == ("precision", "device")
    assert {candidate.precision for kind, candidate in executor.launched if kind == "train"} == {"bf16"}


@pytest.mark.parametrize(("nodes", "room", "fits"), [(1, 25, False), (4, 25, False), (4, 40, True)])
def test_a_model_is_built_in_the_memory_of_one_machine_however_many_take_part(tmp_path, nodes, room, fits):
    """261 GiB, by the first of 8 ranks on each node."""

    class Roomy(ArithmeticExecutor):
        def offload_room(self, folder, place):
            return room * GIB if place == "host" else 0

    executor = Roomy(Arithmetic(budget=1000))
    device = executor.site.device.model_copy(update={"kind": "cuda", "torch_name": "cuda:0"})
    count = 70 * 10**9
    context = SearchContext(
        space=load_space("multi_gpu"), base=Candidate(), tokens_per_sample=100, budget=80 * GIB,
        goal=Goal(target="6400", seq_len=100, gpus=8 * nodes, nodes=nodes),
        site=executor.site.model_copy(update={"device": device}),
        model=FACTS.model_copy(update={"parameters": count, "trainable_parameters": count}),
        source=ModelSpec(name="m", source="config", config={}),
    )  # fmt: skip
    refused = Preflight(context, executor, tmp_path).refusal(Candidate(sharding="fsdp2"))
    assert (refused is None) is fits
    if refused is not None:
        assert f"only {8 * room}.00 GiB are free there" in refused.reason
