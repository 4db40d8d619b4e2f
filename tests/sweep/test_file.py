"""The sweep file: its cells, and every mistake in it at once."""

from __future__ import annotations

import json

import pytest

from autotune.errors import InputError
from autotune.specs import DeviceSpec
from autotune.sweep.asked import AskedSweep
from autotune.sweep.file import SweepFile, SweepGoal, SweepHardware
from autotune.sweep.matrix import cells_of
from autotune.sweep.places import Places, windows
from tests.fakes.sweeps import TWO_BY_TWO, anything, write_sweep


def made(**changes) -> SweepFile:
    return SweepFile.parse({**TWO_BY_TWO, **changes}, "sweep.yaml")


def problems_of(**changes) -> list[str]:
    with pytest.raises(InputError) as caught:
        cells_of(made(**changes), "sweep.yaml")
    return list(caught.value.problems)


def test_a_cell_for_each_combination_by_a_name_that_stays():
    cells = cells_of(made())
    assert [cell.id for cell in cells] == [
        "gpt2-small-short-minimal", "gpt2-small-long-minimal", "tiny-llama-small-short-minimal",
        "tiny-llama-small-long-minimal",
    ]  # fmt: skip
    matrix = {**TWO_BY_TWO["matrix"], "model": ["tiny-llama", "gpt2"]}
    assert {cell.id for cell in cells_of(made(matrix=matrix))} == {cell.id for cell in cells}
    assert cells[0].limits.max_probes == 5


def test_models_that_would_have_the_same_name_are_told_apart():
    matrix = {**TWO_BY_TWO["matrix"], "model": ["a/gpt2.json", "b/gpt2.json"], "goal": "short"}
    first, second = (cell.id for cell in cells_of(made(matrix=matrix)))
    assert first != second
    assert {len(name) for name in (first, second)} == {len("gpt2-small-short-minimal-123456")}
    alone = made(matrix={**matrix, "model": ["x", "a/gpt2.json"]})
    assert cells_of(alone)[1].id == "gpt2-small-short-minimal"


def test_excludes_leave_cells_out_and_includes_extend_those_that_are_left_or_add_one():
    cells = cells_of(
        made(
            exclude=[{"model": "gpt2", "goal": "long"}],
            include=[
                {"model": "tiny-llama", "max_probes": 3},
                {"goal": "short", "priority": 2, "time_budget": "10m"},
                {"model": "gpt2", "hardware": "small", "goal": "long", "priority": 7, "max_probes": 1},
            ],
        )
    )
    found = {cell.id: (cell.priority, cell.limits.max_probes, cell.limits.time_budget) for cell in cells}
    assert found == {
        "gpt2-small-long": (7, 1, None),  # what was excluded comes back with what the include says alone
        "gpt2-small-short-minimal": (2, 5, 600),
        "tiny-llama-small-short-minimal": (2, 3, 600),
        "tiny-llama-small-long-minimal": (0, 3, None),
    }
    assert [cell.priority for cell in cells] == [7, 2, 2, 0]


def test_what_means_no_cell_is_a_mistake():
    assert problems_of(include=[{"model": "other"}]) == [
        "sweep.yaml: include.0: no cell is so, and to add one hardware, goal is missing"
    ]
    assert problems_of(exclude=[{"space": "minimal"}]) == [
        "sweep.yaml: no cell is left: everything is excluded"
    ]


def test_every_mistake_is_told_at_once_with_the_nearest_names():
    with pytest.raises(InputError) as caught:
        made(
            matrix={**TWO_BY_TWO["matrix"], "hardware": ["smal"], "goal": ["short", "log"]},
            goals={
                "short": {"target_global_batch": "1600 samples", "seq_lne": 64},
                "long": {"target_global_batch": "1 samples", "device": "cuda", "max_probes": 3},
            },
            exclude=[{"model": "gtp2"}],
            include=[{"hardware": "small", "max_prob": 3}, {"goal": "lnog"}],
            limits={"max_probes": 0},
            cels_at_once=3,
        )
    said = "\n".join(caught.value.problems)
    for part in (
        "goals.short.seq_lne: unknown key; did you mean seq_len",
        "goals.long: this is no part of a goal: device stands under hardware, max_probes stands under limits",
        "matrix.hardware: there is no 'smal'; did you mean small?",
        "matrix.goal: there is no 'log'; did you mean long",
        "exclude.0.model: there is no 'gtp2'; did you mean gpt2?",
        "include.0.max_prob: unknown key; did you mean max_probes",
        "include.1.goal: there is no 'lnog'; did you mean long?",
        "limits.max_probes: ",
        "cels_at_once: unknown key; did you mean cells_at_once",
    ):
        assert part in said, part
    assert len(caught.value.problems) == 9
    assert "goals.short.seq_lne" in caught.value.about


def test_mistakes_of_runs_are_told_with_the_key_that_they_are_of(tmp_path):
    file = write_sweep(
        tmp_path,
        matrix={
            "model": ["gpt2", "gtp2"], "hardware": ["small", "none"], "goal": ["short", "long"], "space": ["defualt"],
        },
        hardware={"small": {"device": "cpu:1GiB"}, "none": {"device": "gpu"}},
        goals={
            "short": {"target_global_batch": "many", "seq_len": 64},
            "long": {"target_global_batch": "1600 samples", "seq_len": 4096},
        },
    )  # fmt: skip
    with pytest.raises(InputError) as caught:
        AskedSweep.read(file)
    told = {problem.about: problem for problem in caught.value.problems}
    assert set(told) == {
        "matrix.model", "matrix.space", "hardware.none", "goals.short.target_global_batch", "goals.long.seq_len",
    }  # fmt: skip
    assert "did you mean gpt2" in told["matrix.model"]
    assert "did you mean default" in told["matrix.space"]
    assert told["goals.long.seq_len"].endswith(")")  # of one model alone
    assert len(caught.value.problems) == 5


def test_relative_paths_start_at_the_file(tmp_path, monkeypatch):
    from autotune.models.catalog import find

    (tmp_path / "sweeps").mkdir()
    preset = find("gpt2")
    (tmp_path / "sweeps" / "mine.json").write_text(json.dumps(dict(preset.config)))
    (tmp_path / "sweeps" / "lengths.txt").write_text("12\n30\n")
    goals = {"short": {"target_global_batch": "64 samples", "lengths": "lengths.txt", "seq_len": 32}}
    matrix = {"model": "mine.json", "hardware": "small", "goal": "short"}
    file = write_sweep(tmp_path / "sweeps", goals=goals, matrix=matrix)
    monkeypatch.chdir(tmp_path)
    asked = AskedSweep.read(file)
    spec = asked.specs.of(asked.cells[0])
    assert spec.model.config["n_layer"] == 12
    assert spec.goal.lengths.longest == 30
    assert spec.space_name == "packing"


@pytest.mark.parametrize(
    ("hardware", "wrong"),
    [
        ({"device": ["cpu:1GiB", "cpu:2GiB"]}, "a list of devices is one of GPUs"),
        ({"device": ["cuda", "cuda:0"]}, "a GPU is listed twice"),
        ({"device": "cuda", "at_once": 2}, "two probes on one GPU would measure each other"),
        ({"device": "cpu"}, "the cpu device needs a memory budget"),
        ({"device": "cuda", "partition": "a100"}, "no `cluster` is named"),
        ({"device": ["cuda:0", "cuda:1"], "cluster": "c.yaml"}, "name one device, and at_once for more jobs"),
    ],
)
def test_hardware_that_cannot_be(hardware, wrong):
    with pytest.raises(InputError, match=wrong):
        made(hardware={"small": hardware})


def test_more_memory_at_once_than_there_is_is_told(tmp_path):
    file = write_sweep(tmp_path, hardware={"small": {"device": "cpu:1GiB", "at_once": 10_000}})
    with pytest.raises(InputError, match=r"hardware.small.at_once: 10000 probes of 1 ranks"):
        AskedSweep.read(file)


def test_places_bind_a_run_to_devices_and_let_nobody_share_the_cpu():
    cpu = SweepHardware(device="cpu:1GiB", at_once=2).devices
    places = Places(cpu, shared=False)
    first = places.bind(1)
    places.bind(2)
    assert places.load(1) is None
    places.release(first)
    assert places.load(1) == 0
    gpus = SweepHardware(device=["cuda:0", "cuda:1", "cuda:3"]).devices
    assert windows(gpus, 2, True) == [(0, 1)]
    assert windows(gpus, 3, True) == []
    assert windows((DeviceSpec.parse("cuda"),), 8, True) == [(0,)]
    places = Places(gpus, shared=True)
    pair, other = places.bind(2), places.bind(1)
    assert (pair.device.index, other.device.index) == (0, 3)
    assert (places.load(1), places.load(2)) == (1, 1)
    third = places.bind(1)
    assert third.device.index == 0
    assert (places.load(1), places.load(2)) == (1, None)
    for place in (pair, other, third):
        places.release(place)
    assert places.load(2) == 0


def test_jobs_of_a_cluster_have_their_own_devices(tmp_path):
    cluster = {
        "engine": "slurm",
        "shared": str(tmp_path),
        "python": "/usr/bin/python3",
        "partitions": {"a100": {}, "h100": {}},
    }
    (tmp_path / "cluster.yaml").write_text(json.dumps(cluster))
    jobs = {"device": "cuda", "at_once": 3, "cluster": "cluster.yaml", "partition": "a100"}
    hardware = SweepHardware.model_validate(jobs)
    assert not hardware.shared
    places = Places(hardware.devices, hardware.shared)
    bound = [places.bind(8) for _ in range(3)]
    assert [place.numbers for place in bound] == [(0,), (1,), (2,)]
    assert places.load(8) is None
    asked = AskedSweep.read(write_sweep(tmp_path, hardware={"small": jobs}), anything)
    (target,) = {asked.specs.of(cell).cluster.name for cell in asked.cells}
    assert target == "a100"
    with pytest.raises(InputError) as caught:
        AskedSweep.read(write_sweep(tmp_path, hardware={"small": {**jobs, "partition": "b100"}}), anything)
    assert set(caught.value.about) == {"hardware.small.partition"}
    (tmp_path / "cluster.yaml").write_text(json.dumps({**cluster, "nodes": 2}))
    with pytest.raises(InputError) as caught:
        AskedSweep.read(write_sweep(tmp_path, hardware={"small": jobs}), anything)
    assert set(caught.value.about) == {"hardware.small.cluster"}


def test_a_goal_takes_every_option_that_stands_nowhere_else():
    from autotune.options import RunOptions

    taken = set(RunOptions.model_fields) - set(SweepGoal.ELSEWHERE)
    assert {
        "target_global_batch",
        "seq_len",
        "gpus",
        "nodes",
        "strategy",
        "objective",
        "allow",
        "launcher",
    } <= taken
