"""autotune from Python: what can be imported, what the keywords are, and which functions name a model."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Required, get_origin, get_type_hints

import pytest
from typer.testing import CliRunner

import autotune
from autotune import api, errors
from autotune.candidate import AXES
from autotune.cli import app
from autotune.errors import InputError
from autotune.estimation.request import EstimateRequest
from autotune.executors import find as executors
from autotune.keywords import EstimateKeywords, RunKeywords
from autotune.models.callable import importable
from autotune.models.resolve import resolve
from autotune.options import RunOptions
from autotune.probe.launch import MARK
from autotune.testing.arithmetic import Arithmetic
from tests.data import own_model
from tests.estimation.test_estimate import MadeTracer
from tests.fakes.executor import ArithmeticExecutor

BUILD = """
class Maker:
    def build(self): ...

def build():
    import torch
    return torch.nn.Linear(1, 1), None

same = build
other = lambda: None
def outer():
    def inner(): ...
    return inner
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return a module of a user's own in a package of a folder that is on the path."""
    package = tmp_path / "some" / "mypackage"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def build(): ...\n")
    (package / "mymodel.py").write_text(BUILD)
    monkeypatch.syspath_prepend(str(tmp_path / "some"))
    from mypackage import mymodel

    yield mymodel
    for name in ("mypackage.mymodel", "mypackage"):
        sys.modules.pop(name, None)


def test_every_exception_can_be_imported_from_autotune():
    public = {
        name for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    }  # fmt: skip
    assert public <= set(autotune.__all__)
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None
    assert issubclass(autotune.InputError, autotune.AutotuneError)
    assert callable(autotune.estimate), "not a module of that name"
    assert set(autotune.__all__) <= set(dir(autotune))
    with pytest.raises(AttributeError):
        _ = autotune.nothing


def required(keywords):
    hints = get_type_hints(keywords, include_extras=True)
    return {name for name, hint in hints.items() if get_origin(hint) is Required}


def test_the_keywords_of_tune_are_the_options_of_a_run():
    keywords = inspect.signature(api.tune).parameters
    own = {"runs", "callbacks"}
    assert set(keywords) - own == set(RunOptions.model_fields)
    assert set(keywords) & own == own
    assert set(get_type_hints(RunKeywords)) == set(RunOptions.model_fields)
    for name, field in RunOptions.model_fields.items():
        assert (name in required(RunKeywords)) == field.is_required(), name
        assert keywords[name].default == (inspect.Parameter.empty if field.is_required() else field.default)
        assert keywords[name].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_keywords_of_estimate_are_its_questions():
    assert set(inspect.signature(api.estimate).parameters) == set(EstimateRequest.model_fields)
    assert set(get_type_hints(EstimateKeywords)) == set(EstimateRequest.model_fields)
    assert required(EstimateKeywords) == {"model"}
    assert not set(AXES) & set(EstimateRequest.model_fields)


def test_a_function_of_a_module_goes_by_its_name(mine, tmp_path):
    name, folder = importable(mine.build)
    assert (name, folder) == ("mypackage.mymodel:build", tmp_path / "some")
    spec = resolve(name, base=folder)
    assert (spec.name, spec.path, spec.source) == (name, str(tmp_path / "some"), "function")
    import mypackage

    assert importable(mypackage.build) == ("mypackage:build", tmp_path / "some")
    assert importable(mine.same)[0].endswith(":build")
    assert importable(own_model.build)[0] == "tests.data.own_model:build"


def test_what_no_import_finds_is_refused_with_what_to_do(mine, monkeypatch):
    class Callable:
        def __call__(self): ...

    for function, said in (
        (mine.other, "a lambda has no name"),
        (mine.outer(), "is defined inside a function"),
        (mine.Maker().build, "belongs to a class"),
        (Callable(), "a Callable has no name"),
        (len, "builtins, which has no Python file"),
    ):
        with pytest.raises(InputError, match=f"{said}.*define a function at the top level of a file"):
            importable(function)
    monkeypatch.setattr(mine, "build", lambda: None)
    with pytest.raises(InputError):
        importable(mine.build)
    with pytest.raises(InputError, match="is another object than what was passed"):
        importable(mine.same)


SCRIPT = """
from autotune.models.callable import importable

def build(): ...

if __name__ == "__main__":
    print(importable(build))
"""


def test_a_function_of_the_running_script_goes_by_its_file_and_one_of_a_prompt_is_refused(tmp_path):
    (tmp_path / "train_me.py").write_text(SCRIPT)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, input=SCRIPT
        )
        return done.stdout + done.stderr

    assert "'train_me:build'" in run("train_me.py")
    assert str(tmp_path) in run("train_me.py")
    assert "'train_me:build'" in run("-m", "train_me")
    assert "build is defined in a notebook or prompt, which a worker cannot import" in run("-c", SCRIPT)
    assert "build is defined in a notebook or prompt" in run("-")


def test_a_script_that_tunes_while_a_worker_imports_it_is_told_why_it_must_not(monkeypatch):
    monkeypatch.setenv(MARK, "abc")
    for call in (
        lambda: autotune.tune(model="tiny-gpt2", target_global_batch="1K"),
        lambda: autotune.estimate(model="tiny-gpt2"),
    ):
        with pytest.raises(InputError, match=r'if __name__ == "__main__"'):
            call()


def test_tune_takes_text_and_paths_and_a_function(mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "find_executor", lambda *_: ArithmeticExecutor(Arithmetic(budget=1000)))
    (tmp_path / "lengths.csv").write_text("100,10\n")
    common = {"target_global_batch": 6400, "device": "cpu:1GiB", "headroom": 0.0, "predict": False}
    tried = []

    class Heard(autotune.RunCallbacks):
        def tried(self, trial):
            tried.append(trial)

    best = autotune.tune(model=mine.build, seq_len=100, runs="runs", callbacks=Heard(), **common)
    run = autotune.load_run("last", "runs")
    assert run.best == best
    assert tuple(tried) == run.record.history
    assert run.spec.model.name == "mypackage.mymodel:build"
    again = autotune.load_run(run.paths.root)
    assert again.paths.root == run.paths.root
    assert autotune.Best.read(str(run.paths.best)) == best
    autotune.tune(
        model=mine.build, seq_len=100, lengths=Path("lengths.csv"), train=["*"], runs=Path("others"), **common
    )
    assert autotune.load_run("last", Path("others")).spec.goal.lengths is not None
    with pytest.raises(autotune.InputError) as caught:
        autotune.tune(model="gtp2", target_global_batch="1K", device="cpu:1GiB")
    assert caught.value.about == ("model",)


def test_estimate_gives_what_the_command_gives(monkeypatch):
    monkeypatch.setattr("autotune.tracing.client.LocalTracer", MadeTracer)
    answer = autotune.estimate(
        model="tiny-gpt2", gpu="a100-40gb", candidate={"checkpointing": "full"}, micro_batch=2
    )
    assert answer.priced[0].estimate.candidate.checkpointing == "full"
    assert answer.priced[0].estimate.micro_batch == 2
    assert len(autotune.estimate(model="tiny-gpt2", gpu="a100-40gb").rungs) > 2


def test_the_version_is_told():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"autotune {autotune.__version__}\n")
