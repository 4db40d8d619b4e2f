from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.options import RunOptions
from autotune.run.spec import to_spec
from autotune.search.space import Space

SPACES = Path(__file__).parents[2] / "search_spaces"
BASIC = (SPACES / "basic.yaml").read_text()


@pytest.mark.parametrize(
    "path", [p for p in SPACES.glob("*.yaml") if p.name != "hardware.yaml"], ids=lambda p: p.stem
)
def test_every_shipped_space_is_valid_and_named_as_its_file(path):
    assert Space.parse(path.read_text(), path.name).name == path.stem


def test_no_node_of_the_default_graph_can_set_an_illegal_combination():
    space = Space.parse(BASIC, "basic.yaml")
    full = space.graph.nodes["offload_full"].set
    assert space.refusal(Candidate(**full)) is None
    assert "recomputed" in space.refusal(Candidate(offload="full", checkpointing="none"))


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        Space.parse(text, "mine.yaml")
    return str(caught.value)


def test_all_mistakes_are_reported_at_once_with_the_nearest_names():
    message = refused(
        BASIC.replace("[bf16, fp16, fp32]", "[bf16, fp23]")
        .replace("description:", "descripton:")
        .replace("set: {offload: optimizer}", "set: {ofload: optimizer}")
    )
    assert "'fp23' is not one of fp32, bf16" in message
    assert "descripton: unknown key; did you mean description?" in message
    assert "set.ofload: unknown axis; did you mean offload" in message
    assert all(line.startswith("mine.yaml: ") for line in message.splitlines())


def test_an_edge_to_nowhere_is_found():
    assert "there is no node 'gorw'; did you mean grow" in refused(BASIC.replace("ok: grow\n", "ok: gorw\n"))


def test_an_edge_of_the_wrong_kind_is_found():
    message = refused(
        BASIC.replace("next: {oom: checkpointing_for_more}", "next: {unsupported: checkpointing}")
    )
    assert "next.unsupported: a node of this kind has no such edge" in message


def test_a_loop_is_found():
    message = refused(
        BASIC.replace("next: {ok: grow_checkpointed}\n    grow_ch", "next: {ok: grow}\n    grow_ch")
    )
    assert "is a loop" in message


def test_a_node_that_nothing_leads_to_is_found():
    message = refused(BASIC + "    orphan: {title: Lost, set: {precision: bf16}}\n")
    assert "nodes.orphan: no edge leads here" in message


def test_a_value_outside_the_spaces_own_axes_is_found():
    message = refused(BASIC.replace("offload: [none, optimizer, full]", "offload: [none, optimizer]"))
    assert "graph.nodes.offload_full.set.offload: 'full' is not among this space's axes.offload" in message


def counted(blocks: str) -> str:
    """Return the default space with numbers of checkpointed blocks."""
    return BASIC.replace(
        "checkpointing: [none, full]\n", f"checkpointing: [none, full]\n  checkpointed_blocks: {blocks}\n", 1
    )


def test_an_open_axis_takes_numbers_or_any():
    some = Space.parse(counted("[all, 6]"), "mine.yaml")
    assert some.values("checkpointed_blocks", 4) == ("all", 6)
    every = Space.parse(counted("[6, any]"), "mine.yaml")
    assert every.values("checkpointed_blocks", 4) == (6, "all", 1, 2, 3)
    assert every.values("checkpointed_blocks") == (6, "all"), "of how many is not known"
    assert every.allows("checkpointed_blocks", 77)
    assert every.values("checkpointing", 4) == ("none", "full")
    message = refused(counted("[any, 0, half]"))
    assert "checkpointed_blocks: 0 is not one of all, a number from 1 to 10,000, any" in message
    assert "checkpointed_blocks: 'half' is not one of" in message
    assert "offload: 'any' is not one of" in refused(
        BASIC.replace("offload: [none, optimizer, full]", "offload: [any]")
    )
    setting = counted("[6]").replace(
        "set: {checkpointing: full}", "set: {checkpointing: full, checkpointed_blocks: 5}"
    )
    assert "checkpointed_blocks: 5 is not among this space's axes" in refused(setting)
    assert Space.parse(setting.replace("[6]", "[any]"), "mine.yaml")


def test_malformed_yaml_names_line_and_column():
    assert refused("axes: [1,\nbroken").startswith("mine.yaml:2:")


def test_the_drawing_names_every_node_and_marks_the_path():
    space = Space.parse(BASIC, "basic.yaml")
    drawing = space.graph.mermaid(taken=(("baseline", "oom_backward"), ("checkpointing", "ok")))
    assert all(name in drawing for name in space.graph.nodes)
    assert "class baseline,checkpointing taken" in drawing
    edges = [line for line in drawing.splitlines() if "-->" in line]
    marked = drawing.split("linkStyle ")[1].split(" ")[0].split(",")
    assert [edges[int(index)].strip() for index in marked] == [
        "_start([start]) --> baseline",
        "baseline -- oom --> checkpointing",
        "checkpointing -- ok --> grow_checkpointed",
    ]


def test_several_devices_climb_the_shardings_unless_another_space_is_named(tmp_path):
    def found(**fields):
        options = RunOptions(
            model="tiny-gpt2", target_global_batch="4K", device="cpu:1GiB", seq_len=16, **fields
        )
        return to_spec(options, lambda device, _: device, SPACES).space_name

    assert found() == "default"
    assert found(gpus=2) == "multi_gpu"
    assert found(gpus=2, space="default") == "default"
    (tmp_path / "lengths.csv").write_text("7,3\n16,1\n")
    assert found(lengths=str(tmp_path / "lengths.csv")) == "packing"


def test_several_machines_are_priced_or_stood_for_and_not_launched():
    def spec(device):
        options = RunOptions(
            model="tiny-gpt2", target_global_batch="4K", device=device, seq_len=16, gpus=8, nodes=2
        )
        return to_spec(options, lambda found, _: found, SPACES)

    assert (spec("sim:h100-80gb").goal.gpus, spec("sim:h100-80gb").goal.nodes) == (16, 2)
    assert spec("cpu:1GiB").goal.nodes == 2  # groups of ranks stand for them
    with pytest.raises(InputError) as caught:
        spec("cuda")
    assert caught.value.about == ("nodes",)


COMPILED = (SPACES / "compiled.yaml").read_text()


@pytest.mark.parametrize(
    ("edges", "shortcut"),
    [
        ("{ok: grow_75, oom: budget_50, oom_build", "{ok: grow_75, oom: checkpointing, oom_build"),
        ("{ok: grow_75, oom: budget_50, oom_b", "{ok: grow_75, oom: budget_50, oom_backward: checkpointing, oom_b"),
        ("{oom: budget_50, limit: budget_50}", "{oom: budget_50}"),
        ("set: {activation_memory_budget: 50%}\n", "set: {activation_memory_budget: 50%}\n      micro_batch: beyond\n"),
    ],
)  # fmt: skip
def test_a_memory_budget_is_never_tried_or_left_out_by_what_another_came_to(edges, shortcut):
    assert edges in COMPILED
    assert "what activation_memory_budget 75% came to (budget_75) tells nothing of 50%" in refused(
        COMPILED.replace(edges, shortcut)
    )
