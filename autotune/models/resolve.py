"""From what the user typed to a `ModelSpec`: a preset, a configuration, a function, or a model on the hub."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from autotune.errors import InputError
from autotune.models import catalog, function, hub
from autotune.models.config import LARGEST, parse_config, read_config
from autotune.specs import ModelSpec
from autotune.user_files import read_text, user_path

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_WAYS = (
    "A model is a preset (`autotune models` lists them), a config.json or its folder, owner/name on the "
    "Hugging Face hub, or module:function"
)


def resolve(
    name: str, *, block_class: str | None = None, trust_remote_code: bool = False, base: Path
) -> ModelSpec:
    """Return the model that `name` means; relative paths and modules are looked for in `base` first.

    Tried in this order: a preset's name, its alias or its name on the hub (any case); a path to a
    configuration or its folder; `module:function` or `file.py:function`; owner/name on the hub, of which
    only config.json is fetched. Nothing is imported and no weights are read. A path that has the name of a
    preset is reached as `./name`.

    Raises InputError, with the nearest presets where the name is close to one.
    """
    name = name.strip()
    if not name:
        raise InputError(f"the model's name is empty. {_WAYS}")
    if preset := catalog.find(name):
        return ModelSpec(
            name=preset.name, source="preset", config=dict(preset.config), block_class=block_class,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
    path = base / user_path(name, "--model")
    if path.suffix == ".py":
        raise InputError(f"model {name!r}: name the function too, like {name}:build")
    if os.path.exists(path):
        return ModelSpec(
            name=name, source="config", config=read_config(path, trust_remote_code),
            block_class=block_class, trust_remote_code=trust_remote_code,
        )  # fmt: skip
    if ":" in name:
        called, folder = function.locate(name, base)
        return ModelSpec(
            name=called, source="function", path=folder, code=function.code_digest(called, folder),
            block_class=block_class,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
    if name.endswith((".json", "/")) or name.startswith((".", "/", "~")):
        raise InputError(f"the model's configuration {path} does not exist. {_WAYS}")
    if _HUB_NAME.match(name):
        return _from_hub(name, block_class, trust_remote_code)
    raise InputError(f"model {name!r} is unknown{_near(name)} {_WAYS}")


def _from_hub(name: str, block_class: str | None, trust_remote_code: bool) -> ModelSpec:
    try:
        file = hub.fetch_config(name)
    except InputError as error:
        raise InputError(f"{error}{_near(name)} Presets (`autotune models`) need no network") from None
    text = read_text(file, f"the config.json of {name} on the hub", LARGEST)
    config = parse_config(text, f"config.json of {name}", trust_remote_code, code_at=name)
    return ModelSpec(
        name=name, source="hub", config=config, block_class=block_class, trust_remote_code=trust_remote_code
    )


def _near(name: str) -> str:
    """Return the end of a sentence that names presets close to `name`, in short or full spelling."""
    shown = {spelling.lower(): spelling for preset in catalog.list_presets() for spelling in preset.names()}
    close = difflib.get_close_matches(name.lower(), shown, n=3, cutoff=0.6)
    return f": did you mean {', '.join(shown[spelling] for spelling in close)}?" if close else "."
