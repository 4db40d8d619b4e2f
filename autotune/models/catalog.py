"""The presets: configurations of well-known models, stored with the package so that they need no network.

One file a model under `presets/`; the file's name is the preset's name. `config` holds the values that were
published with the model, as far as they shape the training step; the rest of the file says what it is.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from autotune.validation import Frozen

FOLDER = Path(__file__).with_name("presets")


class Preset(Frozen):
    """A model that resolves by name without a network."""

    name: str
    """What the user types; the stem of the file."""
    title: str
    """Name for people, with the size or version that tells it from its siblings."""
    family: str
    hub: str | None
    """Full name on the Hugging Face hub, which resolves to this preset too; None for a test model."""
    aliases: tuple[str, ...] = ()
    """Other names for the same model."""
    parameters: int
    """Published number of parameters, each shared one counted once."""
    longest: int
    """Longest sequence the model can take, in tokens (patches and class token for an image model)."""
    source: str
    """Where the configuration was published."""
    config: dict[str, Any]
    """The transformers configuration, as in config.json."""

    def names(self) -> tuple[str, ...]:
        """Return every spelling that means this preset."""
        return (self.name, *self.aliases, *((self.hub,) if self.hub else ()))


@functools.cache
def list_presets() -> tuple[Preset, ...]:
    """Return all presets, by family and size."""
    presets = [
        Preset(name=file.name.removesuffix(".json"), **json.loads(file.read_text("utf-8")))
        for file in FOLDER.glob("*.json")
    ]
    return tuple(sorted(presets, key=lambda preset: (preset.family, preset.parameters)))


def find(name: str) -> Preset | None:
    """Return the preset that `name` means (its name, an alias or its hub name, in any case), or None."""
    wanted = name.strip().lower()
    for preset in list_presets():
        if wanted in (spelling.lower() for spelling in preset.names()):
            return preset
    return None


def names() -> tuple[str, ...]:
    """Return the names of all presets, as shown to people."""
    return tuple(preset.name for preset in list_presets())
