"""A record as YAML for people: what a key means above it, and sizes in GiB beside those in bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

from autotune.bounds import Bytes, Unit
from autotune.units import format_bytes


def commented_text(record: BaseModel) -> str:
    """Return the text of a record: stable order, the descriptions of its keys above them, sizes in bytes and in GiB."""
    document = _commented(record.model_dump(mode="json"), record)
    for name, field in type(record).model_fields.items():
        if field.description:
            document.yaml_set_comment_before_after_key(name, before=field.description)
    text = io.StringIO()
    _writer().dump(document, text)
    return text.getvalue()


class _Representer(RoundTripRepresenter):
    """Writes None as `null`, and 1e-05 as 1.0e-05.

    Readers of YAML 1.1, which many tools still are, would take 1e-05 for text.
    """

    def represent_plain_float(self, value: float) -> ScalarNode:
        digits, e, exponent = repr(value).partition("e")
        if e and "." not in digits:
            return self.represent_scalar("tag:yaml.org,2002:float", f"{digits}.0e{exponent}")
        node: ScalarNode = self.represent_float(value)
        return node

    def represent_plain_null(self, _value: None) -> ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(float, _Representer.represent_plain_float)
_Representer.add_representer(type(None), _Representer.represent_plain_null)


def _writer() -> YAML:
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 110
    return yaml


def _commented(values: Mapping[str, Any], record: BaseModel) -> CommentedMap:
    """Copy a record's dumped values into a map that carries comments: GiB beside every number of bytes."""
    result = CommentedMap()
    hints = get_type_hints(type(record), include_extras=True)
    for name, value in values.items():
        result[name] = _copied(value, getattr(record, name))
        if name == "counts":  # hundreds of pairs
            result[name] = CommentedSeq(value)
            result[name].fa.set_flow_style()
        if isinstance(value, int) and name in hints and _is_in_bytes(hints[name]):
            result.yaml_add_eol_comment(format_bytes(value), name, column=40)
    return result


def _copied(value: Any, part: Any) -> Any:
    if isinstance(part, BaseModel):
        return _commented(value, part)
    if isinstance(part, tuple) and any(isinstance(one, BaseModel) for one in part):
        return [_copied(*each) for each in zip(value, part, strict=True)]
    return value


def _is_in_bytes(hint: Any) -> bool:
    """Tell whether a type is a number of bytes, or that or nothing."""
    return any(part == _IN_BYTES or _is_in_bytes(part) for part in get_args(hint))


_IN_BYTES = next(part for part in get_args(Bytes) if isinstance(part, Unit))
