"""What shells and editors complete by: completion scripts, and JSON Schemas that files refer to."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from autotune.candidate import AXES
from autotune.cli import app
from autotune.cli.completion import SHELLS, VARIABLE, asked
from autotune.errors import InputError
from autotune.json_schema import reference, schema_name
from autotune.options import RunOptions
from autotune.run.best import Best
from autotune.run.folder import create_run, load_spec
from autotune.run.loop import tune
from autotune.schemas import SCHEMAS, attach, schema
from autotune.search.shipped import load_space
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec
from tests.search.test_space import BASIC


def unknown_keys(value, found, root, where=""):
    """Yield keys that a schema does not know and those it wants: enough of JSON Schema for records of ours."""
    while "$ref" in found:
        found = root["$defs"][found["$ref"].rpartition("/")[2]]
    options = found.get("anyOf") or found.get("oneOf")
    if options:
        tried = [list(unknown_keys(value, one, root, where)) for one in options]
        yield from min(tried, key=len)
        return
    if isinstance(value, dict) and (found.get("properties") or found.get("additionalProperties")):
        known = found.get("properties", {})
        for key, part in value.items():
            rest = found.get("additionalProperties")
            if key in known:
                yield from unknown_keys(part, known[key], root, f"{where}.{key}")
            elif isinstance(rest, dict):
                yield from unknown_keys(part, rest, root, f"{where}.{key}")
            elif rest is False:
                yield f"{where}.{key} is unknown"
        yield from (f"{where}.{key} is missing" for key in found.get("required", ()) if key not in value)
    elif isinstance(value, list) and isinstance(found.get("items"), dict):
        for number, part in enumerate(value):
            yield from unknown_keys(part, found["items"], root, f"{where}[{number}]")
    elif "enum" in found and value not in found["enum"]:
        yield f"{where} is {value!r}"
    elif found.get("type") == "object" and not isinstance(value, dict):
        yield f"{where} is no object"
    elif found.get("type") == "null" and value is not None:
        yield f"{where} is not null"


@pytest.fixture
def run(tmp_path):
    paths = create_run(make_spec(), tmp_path / "runs")
    tune(make_spec(), paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    return paths


def test_the_files_of_a_run_name_their_schemas_which_lie_beside_them(run):
    from autotune.user_files import parse_yaml

    for file, name in ((run.best, "best"), (run.spec, "run")):
        text = file.read_text()
        assert text.startswith(reference(name))
        beside = json.loads((run.root / schema_name(name)).read_text())
        assert beside == json.loads(json.dumps(schema(name)))
        data = parse_yaml(text, str(file))
        assert list(unknown_keys(data, beside, beside)) == []
        assert list(unknown_keys({**data, "odd": 1}, beside, beside)) == [".odd is unknown"]
    assert Best.read(run.best).candidate
    assert load_spec(run) == make_spec()


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_plain_json_with_descriptions(name):
    done = CliRunner().invoke(app, ["schema", name])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["title"]
    assert found["type"] == "object"
    assert "description" in done.stdout


def test_a_spec_may_be_partial_and_have_keys_like_flags():
    found = schema("spec")
    assert not found.get("required")
    assert {"target-global-batch", "target_global_batch"} <= set(found["properties"])
    assert set(RunOptions.model_fields) <= set(found["properties"])
    assert list(unknown_keys({"model": "gpt2", "seq-len": 128}, found, found)) == []
    assert list(unknown_keys({"modle": "gpt2"}, found, found)) == [".modle is unknown"]


@pytest.mark.parametrize("name", ["default", "everything", "multi_gpu", "finetune"])
def test_shipped_spaces_keep_to_their_schema(name):
    found, space = schema("space"), load_space(name).model_dump(mode="json")
    assert list(unknown_keys(space, found, found)) == []
    axis = next(iter(space["axes"]))
    odd = {**space, "axes": {**space["axes"], axis: ["nonsense"], "nothing": [1]}}
    assert set(unknown_keys(odd, found, found)) == {
        f".axes.{axis}[0] is 'nonsense'",
        ".axes.nothing is unknown",
    }
    assert set(found["properties"]["axes"]["properties"]) == set(AXES)


def test_a_file_is_joined_with_its_schema_and_stays_as_it_was(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(BASIC)
    for _ in range(2):
        beside = attach("space", file)
        assert file.read_text() == reference("space") + BASIC
    assert json.loads(beside.read_text())["properties"]["graph"]
    assert load_space(str(file)) == load_space(str(file))
    with pytest.raises(InputError):
        attach("space", tmp_path / "missing.yaml")
    done = CliRunner().invoke(app, ["schema", "space", str(file)])
    assert done.stdout.strip() == str(beside)


def test_names_of_schemas_and_shells_that_there_are_not_are_refused():
    with pytest.raises(InputError) as caught:
        schema("bset")
    assert caught.value.about == ("name",)
    assert "best" in str(caught.value), "the nearest there is"
    done = CliRunner().invoke(app, ["completion", "tcsh"])
    assert isinstance(done.exception, InputError)
    listed = CliRunner().invoke(app, ["schema"]).stdout
    assert all(f"{name}: " in listed for name in SCHEMAS)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_that_asks_autotune(shell):
    text = CliRunner().invoke(app, ["completion", shell]).stdout
    assert f"{VARIABLE}=complete_{shell}" in text


@pytest.fixture
def completed(monkeypatch):
    """Return what a shell is offered for a line."""

    def ask(line: str) -> list[str]:
        monkeypatch.setenv(VARIABLE, "complete_bash")
        assert asked()
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        done = CliRunner().invoke(app, [], env=words, prog_name="autotune")
        return done.stdout.split()

    return ask


def test_verbs_options_values_and_runs_are_completed(run, completed, monkeypatch):
    monkeypatch.chdir(run.root.parent.parent)
    assert completed("autotune rep") == ["report"]
    assert completed("autotune report --ht") == ["--html"]
    assert completed("autotune run --strategy gr") == ["graph", "grid"]
    assert completed("autotune report ") == ["last", run.id]
