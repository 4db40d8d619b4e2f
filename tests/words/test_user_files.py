"""Files that somebody else wrote: whatever they hold, plain data or one InputError, and nothing waits for ever."""

import json
import os
import socket

import pytest

from autotune.errors import InputError
from autotune.models.config import read_config
from autotune.run.best import Best
from autotune.run.spec import read_options
from autotune.search.shipped import load_space
from autotune.user_files import MOST_VALUES, parse_json_value, parse_yaml, read_bytes, read_text, user_path
from autotune.validation import TOLD
from tests.configurations import make_best

NESTED = 3000


def refusal(call, *arguments):
    """Return the only line of the InputError that a call raises."""
    with pytest.raises(InputError) as caught:
        call(*arguments)
    (line,) = str(caught.value).splitlines()
    assert len(line) < 500
    return line


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, why in (
            ("pipe", "it is a pipe"),
            ("folder", "it is a folder"),
            ("circle", "its links lead in a circle"),
            ("socket", "it is a socket"),
            ("nothing", "No such file"),
            ("n" * 300, "File name too long"),
        ):
            assert why in refusal(read_bytes, tmp_path / name)
    assert "it is a device" in refusal(read_bytes, "/dev/zero")


def test_a_file_that_grows_without_end_is_read_up_to_the_limit(tmp_path):
    file = tmp_path / "large"
    file.write_bytes(b"x" * 2000)
    assert "larger than" in refusal(read_bytes, file, None, 1000)
    assert len(read_bytes(file, None, 2000)) == 2000


def test_text_is_utf8_with_or_without_a_byte_order_mark(tmp_path):
    file = tmp_path / "text"
    file.write_bytes("\ufeffmodel: é\n".encode())
    assert read_text(file) == "model: é\n"
    file.write_bytes(b"model: \xff\n")
    assert "not a text file in UTF-8 (byte 8 is 0xff)" in refusal(read_text, file)
    file.write_bytes(b"model: \0\n")
    assert "NUL" in refusal(read_text, file)


def test_a_path_is_what_the_user_meant(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/runs", "--runs") == tmp_path / "runs"
    assert "no home folder of ~nosuchuser" in refusal(user_path, "~nosuchuser/runs", "--runs")
    assert "--runs: the name is empty" in refusal(user_path, " ", "--runs")
    assert "NUL" in refusal(user_path, "a\0b", "--runs")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "duplicate key"),
        ('{"a": {"1": [1.5, null, true, "x"]}, "b": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ("[" * NESTED + "]" * NESTED, "more than 50 levels"),
        ("a: " + "[" * 60 + "]" * 60, "more than 50 levels"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
        ("a: " + "9" * 200, "a number of about 200 digits; 100 digits are the most"),
        ("1: a", "the key 1 is not text"),
        ("null: a", "the key None is not text"),
        ("a: 2001-02-03", "is a date"),
        ("a: 2001-99-99", "not valid YAML"),
        ("a: !!binary YQ==", "is a bytes"),
        ("a: !!bool nonsense", "not valid YAML"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("a: &a [*a]", "more than 50 levels"),
        ("a: 1\na: 2", "duplicate key"),
        ("- a", "expected keys and values, found a list"),
        ("", "found nothing"),
        ("a: \x1b[31m", "special characters are not allowed"),
    ],
)
def test_yaml_that_is_no_plain_mapping_is_refused_in_one_line(text, why):
    assert why in refusal(parse_yaml, text, "mine.yaml")


def test_aliases_do_not_multiply(tmp_path):
    rows = [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
        for before, name in zip("abcdef", "bcdefg", strict=True)
    ]
    text = "\n".join(["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]", *rows])
    assert f"more than {MOST_VALUES:,} values" in refusal(parse_yaml, text, "mine.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "more than 50 levels"),
        ('{"a": ' * NESTED + "1" + "}" * NESTED, "more than 50 levels"),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ('{"a": 1, "a": 2}', "the key 'a' stands there twice"),
        ("{", "at line 1, column 2"),
    ],
)
def test_json_that_is_malformed_is_refused_in_one_line(text, why):
    assert why in refusal(parse_json_value, text, "mine.json")


def test_another_kind_of_file_is_named_and_not_taken_apart_key_by_key(tmp_path):
    best, config = make_best().to_yaml(), json.dumps({"model_type": "gpt2", "n_layer": 2})
    assert refusal(Best.from_yaml, config, "mine") == "mine is not a best.yaml: it is a model's config.json"
    (tmp_path / "best.yaml").write_text(best)
    assert "is not a search space: it is a best.yaml" in refusal(load_space, str(tmp_path / "best.yaml"))
    assert "it is a best.yaml" in refusal(read_options, {}, tmp_path / "best.yaml")
    assert "it is a table of hardware" in refusal(load_space, "hardware")
    assert "it has no key" in refusal(Best.from_yaml, "a: 1", "mine")


def test_the_first_problems_of_a_document_are_told_and_the_number_of_the_others(tmp_path):
    (tmp_path / "spec.yaml").write_text("{" + ", ".join(f"key{n}: 1" for n in range(2000)) + "}")
    with pytest.raises(InputError) as caught:
        read_options({"model": "gpt2", "target_global_batch": "4M"}, tmp_path / "spec.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == TOLD + 1
    assert lines[-1].endswith(f"{2000 - TOLD:,} more problems")


def test_a_configuration_is_read_like_any_other_file(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "it is a pipe" in refusal(read_config, tmp_path / "config.json", False)


@pytest.mark.parametrize("text", [r'{"a": "x\ud800"}', r'{"\udfff": 1}', r'{"a": [{"b": "\ud83d"}]}'])
def test_half_a_character_that_an_escape_makes_is_no_text(text):
    for parse in (parse_json_value, parse_yaml):
        assert "half a character" in refusal(parse, text, "mine")
    assert parse_json_value(r'{"a": "\ud83d\ude00"}', "mine") == {"a": "\U0001f600"}
