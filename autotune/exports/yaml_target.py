"""What exports to command lines that read one YAML file have in common: it names a model's folder, and one of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.exports.shared import MAKE_INPUTS, input_files, launch_files, on_all_ranks, yaml_text
from autotune.exports.transformers import deepspeed_file
from autotune.run.best import Best

EXAMPLES = "model and data are examples until you name your own"
"""Said at the top of the file."""


def yaml_files(
    best: Best,
    name: str,
    settings: Mapping[str, Any],
    *,
    typed: str,
    program: str,
    rows: str,
    more: str = "",
) -> dict[str, str]:
    """Return the files of such a target: its YAML by `name`, what it names, and what starts it.

    `typed` is the command that a user would type, `program` what the interpreter is told, `rows` what a row of example
    data holds (`input_files`), and `more` goes on the sentence of the examples.
    """
    about = (
        f"Start it with launch.sh, or `{typed}` under the variables that launch.sh sets.\n{EXAMPLES}{more}."
    )
    return {
        name: yaml_text(settings, about),
        **launch_files(best, on_all_ranks(best, program), MAKE_INPUTS),
        **deepspeed_file(best),
        **input_files(best, rows=rows),
    }
