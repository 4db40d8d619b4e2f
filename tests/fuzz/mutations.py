"""Documents and texts that somebody could write: valid ones with mistakes in them, and no documents at all."""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from hypothesis import strategies as st

TEXTS = (
    "", " ", "[/red]", "[bold]x", ":smile:", "\x1b[31mred", "\x07", "\0", "\u202egnp", "\x9b2J", "$x_1$", "<b>x</b>",
    "~nosuchuser", "~nosuchuser/x", "x" * 300, "x" * 20_000, "a\nb", "'; touch pwned; '", "$(touch pwned)", "None",
    "null", "true", "inf", "nan", "-1", "0", "1e999", "9" * 20, "9" * 5000, "²", "\uff11\uff12", "1_000", "0x10", "4M",
    "64Ki", "30m", "1h30m", "512 samples", "cpu:1GiB", "cpu:0", "sim:h100-80gb", "cuda:99", "auto", "default", "last",
    "gpt2",
    "tiny-gpt2", "mine:build", "mine.py:build", "./", "/dev/zero", "/dev/full", "a/b", "--help", "-", "=", "x=y",
    "\ud800", "é", "中" * 40, "__class__", "bf16", "none", "full", "on", "100%",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 1000, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**12, 10**20, 10**99, -(10**20), 0.5, -0.5, 1.5,
    1e-320, 1e308, float("inf"), float("-inf"), float("nan"), True, False,
)  # fmt: skip

PIECES = (
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[0m", b"{", b"[" * 100, b"&a [*a]", b": ", b"\n", b"- ", b"%",
    b"\t", b"!!python/object:os.system ", b"9" * 5000, b"<<: *x", b"'", b'"', b"*a",
)  # fmt: skip

texts = st.sampled_from(TEXTS) | st.text(max_size=12)
numbers = st.sampled_from(NUMBERS) | st.integers(-10, 10**6) | st.floats()
scalars = st.none() | texts | numbers


def _large() -> Any:
    nested: Any = 1
    for _ in range(200):
        nested = [nested]
    return (
        nested,
        [1] * 3000,
        {f"k{n}": n for n in range(300)},
        [[1, 2]],
        [{}],
        {"": {}},
        [],
        {},
        {"a": [1, {"b": None}]},
    )


odd = scalars | st.sampled_from(_large())


def places(document: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a document, the outer ones first."""
    found: list[tuple[Any, Any]] = []
    pending = [document]
    while pending and len(found) < 400:
        part = pending.pop(0)
        keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        for key in keys:
            found.append((part, key))
            pending.append(part[key])
    return found


@st.composite
def mutated(draw, document: Any) -> Any:
    """A document with one to three mistakes in it."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        where = places(made)
        if not where:
            return copy.deepcopy(draw(odd))
        container, key = draw(st.sampled_from(range(len(where))).map(where.__getitem__))
        match draw(
            st.sampled_from(
                ("odd", "odd", "odd", "delete", "rename", "copy", "wrap", "retype", "scale", "add")
            )
        ):
            case "odd":
                container[key] = copy.deepcopy(draw(odd))
            case "delete":
                del container[key]
            case "rename" if isinstance(container, dict):
                container[draw(texts)] = container.pop(key)
            case "copy":
                other, name = draw(st.sampled_from(range(len(where))).map(where.__getitem__))
                if name in other if isinstance(other, dict) else name < len(other):
                    container[key] = copy.deepcopy(other[name])
            case "wrap":
                container[key] = draw(
                    st.sampled_from(([container[key]], {"x": container[key]}, [container[key]] * 2))
                )
            case "retype":
                container[key] = str(container[key])
            case "scale" if isinstance(container[key], int | float):
                container[key] *= draw(st.sampled_from((-1, 0, 10, 10**9, 10**18, 0.5)))
            case "add" if isinstance(container, dict):
                container[draw(texts)] = copy.deepcopy(draw(odd))
    return made


@st.composite
def scratched(draw, content: bytes) -> bytes:
    """A text with bytes lost, doubled or put in."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, max(0, len(content) - 1)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=6))
        doubled = content[start:end] * draw(st.sampled_from((0, 0, 1, 2)))
        content = content[:start] + piece + doubled + content[end:]
    return content


def _yaml(document: Any) -> bytes:
    return yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass")


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def files(document: Any, as_yaml: bool = True) -> st.SearchStrategy[bytes]:
    """The bytes of a file that should hold such a document. YAML mostly as JSON, which is read faster."""
    whole = mutated(document).map(_json)
    kinds = [whole, whole, whole, whole, whole, whole, st.just(_json(document)).flatmap(scratched)]
    if as_yaml:
        kinds.append(mutated(document).map(_yaml))
        kinds.append(st.just(_yaml(document)).flatmap(scratched))
    kinds.append(st.binary(max_size=40) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
    return st.sampled_from(range(len(kinds))).flatmap(kinds.__getitem__)


def lines(entries: list[Any]) -> st.SearchStrategy[bytes]:
    """The bytes of a file of JSON lines: with mistakes in them, lost, doubled, in another order, or torn."""

    def written(made: Any) -> bytes:
        parts = made if isinstance(made, list) else [made]
        return b"".join(_json(part) + b"\n" for part in parts)

    @st.composite
    def one_entry(draw):
        index = draw(st.integers(0, len(entries) - 1))
        return [*entries[:index], draw(mutated(entries[index])), *entries[index + 1 :]]

    shuffled = st.permutations(entries).map(written)
    return one_entry().map(written) | mutated(entries).map(written) | shuffled | scratched(written(entries))
