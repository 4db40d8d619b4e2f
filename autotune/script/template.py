"""The template of a command: words as a shell parts them, with placeholders in braces. Pure; no shell is involved."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from autotune.candidate import AXES, Candidate, choices
from autotune.errors import InputError, nearest
from autotune.printable import quoted
from autotune.training_command import NUMBERS, WrittenValue

SWITCHES: dict[str, object] = {
    "checkpointing": "full", "compile": "regional", "loss": "chunked", "kernels": "liger", "offload": "optimizer",
    "activation_offload": True, "tf32": True, "optimizer_in_backward": True, "pin_memory": True, "adapters": "lora",
    "sequences": "packed", "attention": "flash_attention_2",
}  # fmt: skip
"""What `{axis:TEXT}` turns on, by axis; without TEXT the axis has its default."""
REST = "axes"
"""The placeholder in whose place the arguments of a mapping file go; without it they go to the end."""
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([^{}]*))?\}")
_MARK = re.compile("\x01([0-9]+)\x01")


class Placeholder(NamedTuple):
    """One of a template: `{micro_batch}`, `{checkpointing:--gc}`, `{precision:bf16=--bf16|fp32=}`."""

    name: str
    said: str | None
    """What stands behind the colon; None where there is none."""
    written: str
    """The whole of it."""


def split(template: str) -> tuple[str, ...]:
    """Return the words of a template as a shell would part them, a placeholder counting as one letter.

    Raises InputError where a quote is not closed. `{{` and `}}` stand for braces, and stay as they are here.
    """
    found: list[str] = []

    def hide(match: re.Match[str]) -> str:
        found.append(match[0])
        return f"\x01{len(found) - 1}\x01"

    hidden = _PLACEHOLDER.sub(hide, template.replace("{{", "\x02").replace("}}", "\x03"))
    try:
        words = shlex.split(hidden)
    except ValueError as error:
        raise InputError(
            f"--command: {str(error).lower()}; quotes have to be closed", about="command"
        ) from None
    shown = [_MARK.sub(lambda match: found[int(match[1])], word) for word in words]
    return tuple(word.replace("\x02", "{{").replace("\x03", "}}") for word in shown)


def placeholders(words: tuple[str, ...]) -> Iterator[Placeholder]:
    """Yield the placeholders of words, in order."""
    for word in words:
        for match in _PLACEHOLDER.finditer(word.replace("{{", "  ").replace("}}", "  ")):
            yield Placeholder(match[1], match[2], match[0])


def fill(word: str, texts: dict[str, str]) -> str:
    """Return a word with texts for its placeholders, by these as they are written; braces that are doubled are one."""
    hidden = word.replace("{{", "\x02").replace("}}", "\x03")
    filled = _PLACEHOLDER.sub(lambda match: texts[match[0]], hidden)
    return filled.replace("\x02", "{").replace("\x03", "}")


def is_alone(word: str, placeholder: str) -> bool:
    """Tell whether a word is a placeholder and nothing else: then its text may be several words, or none."""
    return word == placeholder


def inline_values(one: Placeholder) -> dict[str, WrittenValue]:
    """Return what a placeholder writes for each value of its axis that it can express. Raises InputError."""
    axis, said = one.name, one.said
    known = {text_of(value): value for value in choices(axis)}
    if said is None:
        if not all(type(value) is int for value in choices(axis)):
            raise InputError(
                f"{one.written}: say what stands for which value, like {{{axis}:{'|'.join(list(known)[:2])}}}, or map "
                "it in a file (--axes)"
            )
        return {text: WrittenValue(text=text) for text in known}
    parts = said.split("|")
    if len(parts) == 1 and "=" not in said.partition(" ")[0].lstrip("-") and said not in known:
        return _switch(one)
    values, problems = {}, []
    for part in parts:
        name, sign, text = part.partition("=")
        if name not in known:
            if len(parts) == 1:
                return _switch(one)
            problems.append(f"{one.written}: {quoted(name)} is no value of {axis}; {nearest(name, known)}")
        values[name] = WrittenValue(text=text if sign else name)
    if problems:
        raise InputError(problems)
    return values


def _switch(one: Placeholder) -> dict[str, WrittenValue]:
    if one.name not in SWITCHES:
        names = "|".join(f"{text_of(value)}=..." for value in choices(one.name)[:2])
        raise InputError(f"{one.written}: {one.name} is no switch; write {{{one.name}:{names}}}")
    default = Candidate.model_fields[one.name].default
    return {text_of(default): WrittenValue(), text_of(SWITCHES[one.name]): WrittenValue(text=one.said or "")}


def unknown(one: Placeholder) -> str | None:
    """Return what is wrong with a placeholder's name, or None."""
    valid = (*NUMBERS, *AXES, REST)
    if one.name in valid:
        return None
    hint = nearest(one.name, valid)
    return f"{one.written}: there is no such placeholder; {hint}. Braces of the command's own are written {{{{ and }}}}"


def text_of(value: object) -> str:
    """Return a value of an axis as files and placeholders write it: `on` and `off` for a switch."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def value_of(axis: str, text: str) -> object:
    """Return the value of an axis that a text stands for; it is one."""
    return next(value for value in choices(axis) if text_of(value) == text)
