"""Options are declared once: what flags, help, spec files and keywords say of one is what its field or axis says."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Literal, get_args, get_origin

import pytest
import typer
from typer.testing import CliRunner

from autotune.candidate import AXES, choices
from autotune.cli import app
from autotune.cli.help import BySubject
from autotune.cli.parameters import option_of, options_of, takes
from autotune.cli.verbs import VERBS
from autotune.errors import InputError
from autotune.exit_codes import BY_VERB
from autotune.options import EstimateOptions, Limits, RunOptions, StrategyName, VerifyOptions
from autotune.run.best import Best
from autotune.run.spec import read_options, to_spec
from autotune.search.strategies import STRATEGIES
from autotune.specs import RunSpec
from autotune.techniques.axis import Axis, Value
from autotune.techniques.check import axis_of
from autotune.techniques.consent import NAMES
from autotune.validation import flag

WIDE = {"COLUMNS": "400"}
MODELS = {"run": RunOptions, "estimate": EstimateOptions, "verify": VerifyOptions}


def help_of(verb: str, width: str = "400") -> str:
    done = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": width})
    assert done.exit_code == 0, done.output
    return done.stdout


def row(text: str, name: str) -> str:
    """Return what help says of an option, in one line."""
    found = re.search(rf"^  {flag(name)}\b.*(?:\n   +.*)*", text, re.MULTILINE)
    assert found, name
    return joined(found[0])


def joined(text: str) -> str:
    """Return text without its line breaks, those after a hyphen too."""
    return re.sub(r"- (?=[a-z])", "-", " ".join(text.replace("`", "").split()))


@pytest.mark.parametrize("verb", MODELS)
def test_help_shows_every_field_with_its_description_and_default(verb: str) -> None:
    text = help_of(verb)
    for name, field in MODELS[verb].model_fields.items():
        said = row(text, name)
        assert field.description
        assert joined(field.description).rstrip(".") in said
        if field.is_required():
            assert said.endswith("[required]")
        elif field.default not in (None, False, True, ()):
            number = isinstance(field.default, float)
            assert (f"[default: {field.default:g}" if number else f"[default: {field.default}]") in said
        if get_origin(field.annotation) is Literal:
            assert all(str(value) in said for value in get_args(field.annotation))


def test_help_names_all_that_needs_consent() -> None:
    said = row(help_of("run"), "allow")
    assert {f"{name}," for name in NAMES[:-2]} <= set(said.split())
    assert f"{NAMES[-2]} or {NAMES[-1]}" in said


@pytest.mark.parametrize("name", AXES)
def test_help_of_an_estimate_shows_every_axis_with_its_values(name: str) -> None:
    said = row(help_of("estimate"), name)
    axis = axis_of(name)
    assert axis.about[1:] in said
    if not isinstance(axis.default, bool):
        words = set(re.findall(r"[^\s,().]+", said))
        assert {str(value) for value in choices(name)} <= words
        assert {value.short for value in axis.values.values()} - {""} <= words
        assert ("a number" in said) == (axis.number is not None)


def test_a_new_value_needs_no_word_in_the_command_line() -> None:
    axis = Axis("precision", "number types", {"bf16": Value(), "fp7": Value(short="seven")})
    seen = {}

    @takes(option_of(axis, "Techniques"))
    def verb(given: object) -> None:
        seen["given"] = given

    mine = typer.Typer(rich_markup_mode=None, add_completion=False)
    mine.command(cls=BySubject)(verb)
    text = CliRunner().invoke(mine, ["--help"], env=WIDE).stdout
    assert "--precision NAME  Number types: bf16 or fp7 (seven).  [default: bf16]" in text
    CliRunner().invoke(mine, ["--precision", "seven"])
    assert seen["given"].options == {"precision": "seven"}
    assert axis.named("seven") == "fp7"


def test_help_is_grouped_by_subject_the_common_ones_first() -> None:
    def sections(verb: str) -> list[str]:
        return re.findall(r"^(\S.*):$", help_of(verb), re.MULTILINE)

    assert sections("run") == [
        "Model and data",
        "Goal",
        "Objective",
        "Device",
        "Search",
        "Probes",
        "Limits",
        "Output",
    ]
    assert sections("estimate") == [
        "Model and data", "Device", "Batch", "Table of rungs, where no technique is named", "Techniques",
        "Several GPUs", "Data", "Memory allocator", "Output",
    ]  # fmt: skip
    assert help_of("run").index("--model") < help_of("run").index("--block-class")


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("verb", VERBS)
def test_help_keeps_to_its_columns(verb: str, width: str) -> None:
    assert max(map(len, help_of(verb, width).splitlines())) <= int(width)


def test_every_verb_is_listed_with_what_it_does() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"], env=WIDE).stdout.split())
    assert set(VERBS) == set(BY_VERB)
    for verb, (_, said) in VERBS.items():
        assert f"{verb} {said}" in text
        assert said in joined(help_of(verb))


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_loads_nothing_heavy(verb: str | None) -> None:
    script = (
        "import sys\nfrom autotune.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print([m for m in sys.modules if '.' not in m], file=sys.stderr)\n"
    )
    words = [verb, "--help"] if verb else ["--help"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    heavy = ["torch", "transformers", "numpy", "scipy", "pandas", "optuna", "plotly", "matplotlib", "psutil"]
    if verb is None:
        heavy += ["pydantic", "ruamel", "rich"]
    elif verb in {"run", "estimate"}:  # whose options are read from records
        heavy += ["ruamel", "rich"]
    assert [name for name in heavy if f"'{name}'" in done.stderr] == []


def test_all_mistakes_of_a_command_are_told_at_once_with_the_nearest_names() -> None:
    given = "run --modle=gpt2 --headroom 2 --optimizer adam --gpus many --tarin x stray"
    problems = CliRunner().invoke(app, given.split()).exception.problems
    assert len(problems) == 8
    text = "\n".join(problems)
    for said in (
        "No such option: --modle; did you mean --model", "No such option: --tarin; did you mean --train",
        "unexpected argument 'stray'", "--headroom: Input should be less than 0.9", "--optimizer: 'adam' is not one of",
        "--gpus: ", "--model: this key is required", "--target-global-batch: this key is required",
    ):  # fmt: skip
        assert said in text
    problems = CliRunner().invoke(
        app, ["estimate", "--model", "tiny-gpt2", "--precison", "x", "--loss", "y", "--gpu", "z", "--seq-len", "0"]
    ).exception.problems  # fmt: skip
    assert [problem.split(":")[0] for problem in problems[:2]] == ["No such option", "--seq-len"]
    assert any(problem.startswith("--loss: 'y' is not one of") for problem in problems)
    assert len(problems) == 4


def test_what_a_verb_was_not_given_keeps_its_default() -> None:
    assert [parameter.default for parameter in options_of(RunOptions)] == [None] * len(
        RunOptions.model_fields
    )
    options = RunOptions.load({"model": "x", "target_global_batch": 5}, "options")
    assert options.part(Limits) == Limits()
    assert options.target_global_batch == "5"


def test_best_offers_only_the_evidence_that_something_makes() -> None:
    assert get_args(Best.model_fields["evidence"].annotation) == ("measured", "predicted", "replayed")


def test_a_strategy_is_named_in_the_spec_and_a_name_that_is_none_gets_the_nearest(tmp_path) -> None:
    assert tuple(STRATEGIES) == get_args(StrategyName)
    assert [strategy.name for strategy in STRATEGIES.values()] == list(STRATEGIES)
    given = {"model": "tiny-gpt2", "target_global_batch": 64, "device": "cpu:1GiB"}
    file = tmp_path / "spec.yaml"
    file.write_text("strategy: grid\n")

    def spec(**options: str) -> RunSpec:
        return to_spec(read_options({**given, **options}, file), lambda device, _: device, tmp_path)

    assert spec().strategy == "grid"
    assert spec(strategy="random").strategy == "random"
    file.write_text("seed: 1\n")
    assert spec().strategy == "guided"
    with pytest.raises(InputError) as caught:
        spec(strategy="grdi")
    assert caught.value.about == ("strategy",)
    assert caught.value.problems[0].endswith("did you mean grid?")
