"""From what a user typed to a `TrainingCommand`, and from that to what is started: an argument vector, no shell."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from autotune.candidate import AXES, Candidate
from autotune.errors import InputError, Problem
from autotune.printable import quoted
from autotune.script import axes as mapping_file
from autotune.script import template
from autotune.script.axes import flagged, read_axes
from autotune.script.config_files import edited, near_keys, parsed, split_key
from autotune.script.template import REST, inline_values, is_alone, placeholders, text_of
from autotune.training_command import NUMBERS, Carrier, TrainingCall, TrainingCommand, WrittenValue
from autotune.user_files import read_text

CODE = frozenset({".py", ".sh", ".json", ".yaml", ".yml", ".toml"})
"""Files that a command names and that decide what it trains: their digests are kept."""


def parse_command(command: str, axes: str | None, evaluation: str | None, base: Path) -> TrainingCommand:
    """Return a command with its axes. Raises one InputError with every mistake of template and mapping file."""
    problems: list[str] = []

    def tried(option: str, said: str) -> tuple[str, ...]:
        try:
            return template.split(said)
        except InputError as error:
            problems.extend(
                Problem(str(one).replace("--command", option), "command") for one in error.problems
            )
            return ()

    words = tried("--command", command)
    if not words and not problems:
        problems.append("--command: it is empty; write the program and its arguments")
    second = tried("--evaluation-command", evaluation) if evaluation else ()
    given = mapping_file.Mapping()
    if axes is not None:
        try:
            given = read_axes(axes, base)
            given = _resolved(given, words)
        except InputError as error:
            problems += [Problem(one, "axes") for one in error.problems]
    inline: dict[str, dict[str, WrittenValue]] = {}
    named: set[str] = set()
    for one in placeholders((*words, *second)):
        if (wrong := template.unknown(one)) is not None:
            problems.append(f"--command: {wrong}")
        elif one.name in AXES:
            try:
                values = inline_values(one)
                if inline.setdefault(one.name, values) != values:
                    problems.append(f"--command: {one.name} stands there twice, with different values")
            except InputError as error:
                problems += [f"--command: {problem}" for problem in error.problems]
        else:
            named.add(one.name)
            if one.said is not None:
                problems.append(
                    f"--command: {one.written}: {one.name} is a number or a name, and takes nothing behind it"
                )
    # All that is written may go to the scratch folder, by whatever names it: caches of data beside what is trained.
    twice = (inline.keys() & given.axes.keys()) | (named & given.numbers.keys()) - {"output"}
    for name in sorted(twice):
        problems.append(f"--axes: {name} stands in the command already; map it in one place")
    carried = named | given.numbers.keys()
    if words and "micro_batch" not in carried:
        problems.append(
            "--command: nothing tells it the micro-batch: write {micro_batch}, or map micro_batch with --axes"
        )
    if words and not carried & {"accumulation", "total_accumulation", "global_batch"}:
        problems.append(
            "--command: nothing tells it how often to accumulate: write {accumulation} (or {global_batch}, in "
            "samples), or map one of them with --axes"
        )
    if words and (wrong := _program(words[0], base)):
        problems.append(wrong)
    made = TrainingCommand(
        words=words or ("",), folder=str(base.absolute()), axes={**inline, **given.axes}, numbers=given.numbers,
        code=digests((*words, *second), base), evaluation=second,
    )  # fmt: skip
    if not problems:
        problems += _file_problems(made)
    if problems:
        raise InputError([Problem(problem, "command") for problem in problems])
    return made


def _resolved(given: mapping_file.Mapping, words: tuple[str, ...]) -> mapping_file.Mapping:
    """Return a mapping whose keys name files; `*.json:` in it is the one file of the command that ends so."""

    def of(key: str) -> str:
        file, path = split_key(key)
        if not file.startswith("*."):
            return key
        named = [part for word in words for part in (word, word.partition("=")[2]) if part.endswith(file[1:])]
        if len(set(named)) != 1:
            said = f"{len(set(named))} do" if named else "none does"
            raise InputError(
                f"--axes: {file} stands for the file of the command that ends in {file[1:]}, and {said}"
            )
        return f"{named[0]}:{'.'.join(path)}"

    axes = {
        axis: {
            value: written.model_copy(update={"keys": {of(key): own for key, own in written.keys.items()}})
            for value, written in values.items()
        }
        for axis, values in given.axes.items()
    }
    numbers = {
        name: carrier if carrier.key is None else carrier.model_copy(update={"key": of(carrier.key)})
        for name, carrier in given.numbers.items()
    }
    return mapping_file.Mapping(axes=axes, numbers=numbers)


def digests(words: tuple[str, ...], base: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of code or configuration that words name, by its name there."""
    found = {}
    for word in words:
        for name in (word, word.partition("=")[2]):
            path = base / name
            if name and PurePath(name).suffix in CODE and path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def title(command: TrainingCommand) -> str:
    """Return what a command is called: its script's file, else the program."""
    words = command.words
    if PurePath(words[0]).name == "env":  # its first words are variables
        words = tuple(word for word in words[1:] if "=" not in word) or words
    scripts = [word for word in words if word.endswith(".py")]
    return PurePath(scripts[0] if scripts else words[0]).name


@dataclass(frozen=True)
class Rendered:
    """What is started for one candidate."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    keys: dict[str, dict[tuple[str, ...], Any]] = field(default_factory=dict)
    """By configuration file, the values that are set in it."""


def render(
    command: TrainingCommand, candidate: Candidate, numbers: Mapping[str, int | str], second: bool = False
) -> Rendered:
    """Return what a candidate's training is started with, or its `second` command. Pure.

    `numbers` has a value for each of `NUMBERS`. The candidate has values that the command can express. What a mapping
    adds comes numbers first: these have flags, and an axis may be a subcommand, which flags must precede.
    """
    texts: dict[str, str] = {}
    added: list[str] = []
    env: dict[str, str] = {}
    keys: dict[str, dict[tuple[str, ...], Any]] = {}
    for name, carrier in command.numbers.items():
        value = numbers[name]
        if carrier.flag is not None:
            added += flagged(carrier.flag, value)
        elif carrier.env is not None:
            env[carrier.env] = str(value)
        elif carrier.key is not None:
            _set(keys, carrier.key, value)
    for axis, values in command.axes.items():
        written = values[text_of(getattr(candidate, axis))]
        added += written.args
        env |= written.env
        for key, value in written.keys.items():
            _set(keys, key, value)
    words = command.evaluation if second else command.words
    for one in placeholders(words):
        if one.name in NUMBERS:
            texts[one.written] = str(numbers[one.name])
        elif one.name in AXES:
            texts[one.written] = command.axes[one.name][text_of(getattr(candidate, one.name))].text
    argv: list[str] = []
    rest = f"{{{REST}}}"
    for word in words:
        if is_alone(word, rest):
            argv += added
            added = []
        elif word in texts:
            argv += shlex.split(texts[word])
        else:
            argv.append(template.fill(word, {**texts, rest: shlex.join(added)}))
    return Rendered((*argv, *added), env, keys)


def call(command: TrainingCommand, candidate: Candidate, numbers: Mapping[str, int | str]) -> TrainingCall:
    """Return what production training is started with."""
    made = render(command, candidate, numbers)
    keys = {
        file: {".".join(path): value for path, value in values.items()} for file, values in made.keys.items()
    }
    return TrainingCall(argv=made.argv, folder=command.folder, env=made.env, keys=keys)


def with_copies(rendered: Rendered, base: Path, folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the argument vector that names edited copies, and these copies' texts by path.

    The originals are read, and never written. Raises InputError where one cannot be read, or a value not be set.
    """
    argv = list(rendered.argv)
    copies: dict[str, str] = {}
    for number, (name, changes) in enumerate(rendered.keys.items()):
        copy = str(folder / f"{number}" / PurePath(name).name)
        copies[copy] = edited(read_text(base / name), name, changes)
        argv = [_renamed(word, name, copy) for word in argv]
    return tuple(argv), copies


def _renamed(word: str, name: str, copy: str) -> str:
    head, sign, value = word.partition("=")
    if word == name:
        return copy
    return f"{head}={copy}" if sign and value == name else word


def _set(keys: dict[str, dict[tuple[str, ...], Any]], key: str, value: Any) -> None:
    file, path = split_key(key)
    keys.setdefault(file, {})[path] = value


def _program(word: str, base: Path) -> str | None:
    if any(True for _ in placeholders((word,))):
        return "--command: its first word is the program, and no placeholder"
    if "/" in word:
        return (
            None
            if os.path.isfile(base / word) and os.access(base / word, os.X_OK)
            else f"--command: {quoted(word)} is no program that can be run"
        )
    if shutil.which(word) is None:
        return f"--command: there is no program {quoted(word)} on the PATH"
    return None


def _file_problems(command: TrainingCommand) -> list[str]:
    """Return what is wrong with the configuration files whose keys carry something."""
    wanted: dict[str, list[tuple[str, ...]]] = {}
    all_keys = [
        key for values in command.axes.values() for written in values.values() for key in written.keys
    ]
    all_keys += [carrier.key for carrier in command.numbers.values() if carrier.key is not None]
    for key in dict.fromkeys(all_keys):
        file, path = split_key(key)
        wanted.setdefault(file, []).append(path)
    problems = []
    for file, paths in wanted.items():
        named = any(file in (word, word.partition("=")[2]) for word in command.words)
        if not named:
            problems.append(
                f"--axes: keys of {file} are mapped, and no word of the command names that file, so that a copy could "
                "stand in its place; write it out in the command"
            )
            continue
        try:
            data = parsed(read_text(Path(command.folder) / file), file)
        except InputError as error:
            problems += error.problems
            continue
        problems += [
            f"--axes: {file}:{'.'.join(path)}: {hint}" for path in paths if (hint := near_keys(data, path))
        ]
    return problems


def carried(command: TrainingCommand) -> frozenset[str]:
    """Return the names of numbers that the command is told."""
    named = {one.name for one in placeholders(command.words)}
    return frozenset(named & NUMBERS.keys()) | frozenset(command.numbers)


__all__ = [
    "Carrier", "Rendered", "call", "carried", "digests", "parse_command", "render", "title", "with_copies",
]  # fmt: skip
