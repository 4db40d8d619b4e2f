"""Help, without the second that drawing it in boxes would take: options under the subjects that they belong to."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
import typer.core
import typer.main

from autotune.cli.verbs import VERBS
from autotune.errors import nearest

REST = "Output"
"""Where options stand that name no subject, such as `--help`."""
WIDEST = 120
"""Columns of help, at most: longer lines are hard to read."""


class BySubject(typer.core.TyperCommand):
    """A verb whose help shows its options by subject, in the order in which it declares them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each subject."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                subject = getattr(parameter, "rich_help_panel", None) or (
                    "Arguments" if parameter.param_type_name == "argument" else REST
                )
                sections.setdefault(subject, []).append(record)
        for subject, rows in sections.items():
            with formatter.section(typer.style(subject, bold=True)):
                formatter.write_dl(rows)


class Verbs(typer.core.TyperGroup):
    """All verbs. One is loaded when it is called; help shows them from their table."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all verbs."""
        return [*VERBS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb; fail with the nearest names where there is none."""
        if cmd_name in VERBS:
            home, text = VERBS[cmd_name]
            command = typer.main.get_group(import_module(home).app).commands[cmd_name]
            command.help = text
            return command
        if (found := super().get_command(ctx, cmd_name)) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {cmd_name!r}; {nearest(cmd_name, VERBS)}")
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  as typer calls it
        """Write what each verb does."""
        with formatter.section(typer.style("Commands", bold=True)):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])
