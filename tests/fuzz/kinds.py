"""Every kind of file and option that a user or a stranger can write, as strategies of commands to run on them."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from typer import Context
from typer.main import get_command

from autotune.candidate import AXES, choices, examples
from autotune.cli import app
from autotune.exports import EXPORTERS
from autotune.models.catalog import find
from autotune.run.folder import create_run, load_spec
from autotune.run.loop import tune
from autotune.search.shipped import load_space
from autotune.testing.arithmetic import Arithmetic
from autotune.user_files import parse_yaml
from tests.configurations import make_best
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec
from tests.fuzz.mutations import files, lines, odd, texts
from tests.fuzz.surface import Ended, command

RUN = (
    "run",
    "--model",
    "tiny-gpt2",
    "--target-global-batch",
    "16K",
    "--device",
    "cpu:1GiB",
    "--max-probes",
    "2",
)
NO_FILE = ("folder", "pipe", "circle", "nothing", "zero", "closed")


@dataclass(frozen=True)
class Example:
    """A command, and the files that it finds in its folder."""

    kind: str
    arguments: tuple[str, ...]
    files: dict[str, bytes | str] = field(default_factory=dict)
    """Bytes by name; a text says what is there instead of a file, see NO_FILE."""
    run: bool = False
    """Whether `runs/mine`, a finished run, is there before the files are written."""


@functools.cache
def finished_run() -> Path:
    """Return the folder of a run that ended with a winner, its YAML as JSON, which is read much faster."""
    parent = Path(tempfile.mkdtemp(prefix="autotune-fuzz-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    spec = make_spec()
    paths = create_run(spec, parent)
    tune(spec, paths, ArithmeticExecutor(Arithmetic(budget=1000)))
    shutil.rmtree(paths.probes)
    for file in paths.root.glob("*.yaml"):
        file.write_text(json.dumps(parse_yaml(file.read_text(), file.name)))
    return paths.root


@functools.cache
def documents() -> dict[str, Any]:
    """Return a valid document of each kind."""
    root = finished_run()
    config = find("tiny-gpt2").config
    return {
        "spec": {
            "model": "tiny-gpt2", "target_global_batch": "16K", "device": "cpu:1GiB", "seq_len": 128, "headroom": 0.1,
            "max_probes": 2, "time_budget": "30m", "probe_timeout": 60, "sample_time": "1s", "proof_time": 2.5,
            "memory_tolerance": 0.1, "speed_tolerance": 0.5, "space": "default", "seed": 1, "predict": False,
            "block_class": "GPT2Block", "train": ["lm_head"], "gpus": 1, "nodes": 1, "exact": False,
            "allow": ["lora", "sgd"], "trust_remote_code": False, "optimizer": "sgd", "lengths": "lengths.csv",
        },
        "space": load_space("basic").model_dump(mode="json", exclude_defaults=True),
        "best": yaml.safe_load(make_best(variables={"OMP_WAIT_POLICY": "passive"}).to_yaml()),
        "journal": [json.loads(line) for line in (root / "journal.jsonl").read_text().splitlines()],
        "run_spec": load_spec_document(root),
        "config": config,
        "lengths": {"12": 5, "40": 2, "128": 1},
    }  # fmt: skip


def load_spec_document(root: Path) -> Any:
    """Return the spec of the finished run as data."""
    from autotune.run.paths import RunPaths

    return load_spec(RunPaths(root)).model_dump(mode="json")


@st.composite
def on_a_file(draw, kind: str, name: str, content: Any, commands: Any, run: bool = False) -> Example:
    """A command on a file that is not quite right, or is no file at all."""
    arguments = draw(st.sampled_from(commands))
    found = draw(st.sampled_from(NO_FILE)) if draw(st.integers(0, 60)) == 0 else draw(content)
    beside = {"lengths.csv": b"12,5\n40,2\n128,1\n"} if kind == "spec" else {}
    return Example(kind, arguments, {**beside, name: found}, run)


def _csv(draw: Any) -> bytes:
    rows = draw(st.lists(st.tuples(odd, odd) | st.tuples(st.integers(1, 300), st.integers(0, 9)), max_size=6))
    text = "\n".join(",".join(str(cell)[:6000] for cell in row) for row in rows)
    return text.encode("utf-8", "surrogatepass")


def options_of(verb: str) -> list[tuple[str, bool]]:
    """Return the options of a verb, and whether each takes a value."""
    found = get_command(app).get_command(Context(get_command(app)), verb)
    return [
        (name, not option.is_flag) for option in found.params for name in option.opts if name.startswith("--")
    ]


@st.composite
def with_options(draw) -> Example:
    """A verb with any of its options, at values that are odd or what another option takes."""
    verb = draw(
        st.sampled_from(
            ("run", "run", "estimate", "estimate", "verify", "report", "export", "resume", "spaces", "models")
        )
    )
    given: dict[str, tuple[str, ...]] = {}
    if verb in {"run", "estimate"}:
        given["--model"] = ("--model", "tiny-gpt2")
    if verb == "run":
        rest = (("--target-global-batch", "16K"), ("--device", "cpu:1GiB"), ("--max-probes", "2"))
        given |= {pair[0]: pair for pair in rest}
    if verb == "estimate":
        given["--precision"] = ("--precision", "bf16")
    for name, takes in draw(st.lists(st.sampled_from(options_of(verb)), max_size=3)):
        value = draw(texts | st.integers(-3, 10**24).map(str) | st.floats().map(str))
        if name in {"--out", "--plot", "--runs", "--spec", "--lengths"} and (
            value.startswith("/") or ".." in value
        ):
            value = "x"  # nothing is written outside of the folder
        given[name] = (name, value) if takes else (name,)
    words = [word for pair in given.values() for word in pair]
    if verb in {"verify", "report", "export", "resume"}:
        words = [draw(st.sampled_from(("last", "mine", "runs/mine", "runs/mine/best.yaml")) | texts), *words]
    return Example("options", (verb, *(word.replace("\0", "") for word in words)), {}, run=True)


@st.composite
def with_axes(draw) -> Example:
    """An estimate of a candidate, by the names of its axes."""
    words = ["estimate", "--model", "tiny-gpt2"]
    for name in draw(st.lists(st.sampled_from(AXES) | texts, min_size=1, max_size=4)):
        value = draw(st.sampled_from([str(value) for value in examples(name)]) if name in AXES else texts)
        words += [f"--{name}".replace("_", "-").replace("\0", "")]
        if name not in AXES or not isinstance(choices(name)[0], bool):
            words += [draw(st.sampled_from((value, value, draw(texts)))).replace("\0", "")]
    return Example("axes", tuple(words))


def kinds() -> dict[str, st.SearchStrategy[Example]]:
    """Return the strategy of each kind."""
    known = documents()
    exports = [("export", "best.yaml", "--to", target, "--out", "out") for target in EXPORTERS]
    reports = [("report", "mine"), ("report", "mine", "--json"), ("report", "mine", "--mermaid"), ("resume", "mine"),
               ("export", "mine", "--out", "out")]  # fmt: skip
    csv = st.composite(_csv)()
    estimate = ("estimate", "--model", "tiny-gpt2", "--checkpointing", "full")
    own = ("--model", "config.json")
    winner = yaml.safe_load((finished_run() / "best.yaml").read_text())
    verify = [("verify", "best.yaml"), ("verify", "best.yaml", "--device", "cpu:1GiB")]
    return {
        "spec": on_a_file(
            "spec", "mine.yaml", files(known["spec"]),
            [("run", "--spec", "mine.yaml"), (*RUN, "--spec", "mine.yaml")],
        ),
        "space": on_a_file(
            "space", "mine.yaml", files(known["space"]),
            [(*RUN, "--space", "mine.yaml"), ("spaces", "draw", "mine.yaml"), (*estimate, "--space", "mine.yaml")],
        ),
        "best": on_a_file("best", "best.yaml", files(known["best"]), [*exports, *verify]),
        "journal": on_a_file("journal", "runs/mine/journal.jsonl", lines(known["journal"]), reports, run=True),
        "run_spec": on_a_file("run_spec", "runs/mine/spec.yaml", files(known["run_spec"]), reports, run=True),
        "winner": on_a_file("winner", "runs/mine/best.yaml", files(winner), reports, run=True),
        "lengths": on_a_file(
            "lengths", "mine.csv", csv | csv | files(known["lengths"], as_yaml=False),
            [(*RUN, "--lengths", "mine.csv"), (*estimate, "--lengths", "mine.csv")],
        ),
        "config": on_a_file(
            "config", "config.json", files(known["config"], as_yaml=False),
            [("run", *own, *RUN[3:]), ("estimate", *own, "--precision", "fp32"),
             ("estimate", "--model", ".", "--trust-remote-code", "--precision", "fp32")],
        ),
        "axes": with_axes(),
        "options": with_options(),
    }  # fmt: skip


def play(example: Example, folder: Path, alone: bool = False) -> Ended:
    """Run an example in an empty folder; with `alone` in a process of its own."""
    _lay_out(example, folder)
    if not alone:
        return command(list(example.arguments), folder)
    where = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HOME": str(folder),
        "AUTOTUNE_CACHE": str(folder),
    }
    words = [
        os.fsencode(word) if word.isprintable() else word.encode("utf-8", "replace")
        for word in example.arguments
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.surface", *words], cwd=folder, env=where, capture_output=True, timeout=300
    )  # fmt: skip
    said = [stream.decode("utf-8", "backslashreplace") for stream in (done.stdout, done.stderr)]
    return Ended(example.arguments, done.returncode, *said)


def _lay_out(example: Example, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if example.run:
        shutil.copytree(finished_run(), folder / "runs" / "mine")
    for name, content in example.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        match content:
            case bytes():
                path.write_bytes(content)
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "circle":
                path.symlink_to(path)
            case "zero":
                path.symlink_to("/dev/zero")
            case "closed":
                path.write_bytes(b"a: 1")
                path.chmod(0)
