"""JSON Schemas of the files that people write and read, so that an editor checks them and completes their keys.

A file refers to its schema in its first line, which the YAML language server of editors reads. The schema lies beside
the file and goes with it: that needs neither a published address nor a path of one machine.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(model: type[BaseModel], title: str, written: bool = False) -> dict[str, Any]:
    """Return the schema of a record's file; `written` for one that autotune writes, with what it computes."""
    mode: Literal["serialization", "validation"] = "serialization" if written else "validation"
    return {"$schema": DIALECT, **model.model_json_schema(mode=mode), "title": title}


def schema_name(name: str) -> str:
    """Return the name of the file that holds a schema: `best.schema.json`."""
    return f"{name}.schema.json"


def reference(name: str) -> str:
    """Return the first line of a file whose schema lies beside it."""
    return f"# yaml-language-server: $schema={schema_name(name)}\n"


@cache
def written_text(model: type[BaseModel], title: str) -> str:
    """Return the text of the schema of a file that autotune writes."""
    return schema_text(schema_of(model, title, written=True))


def schema_text(schema: dict[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
