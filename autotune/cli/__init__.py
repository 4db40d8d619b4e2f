"""The command line: how it starts, and how it ends. `verbs` is its table of contents.

Nothing heavy is imported at the top: `--help` must answer at once, and no verb ever imports torch.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from autotune import __version__
from autotune.cli.completion import asked as completing
from autotune.cli.help import WIDEST, Verbs
from autotune.exit_codes import ExitCode, summary
from autotune.interruption import Interruption, exit_code, ignore, listening, name_of
from autotune.printable import printable
from autotune.terminal import (
    fail,
    fail_on_this_machine,
    finish,
    keep_stderr,
    print_line,
    write_what_can_be_written,
)

app = typer.Typer(
    cls=Verbs, invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Find the fastest way to train a model that is proven not to run out of memory.",
    epilog=summary(), context_settings={"max_content_width": WIDEST},
)  # fmt: skip


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line (of `arguments`, else this process's own); turn errors into messages and exit codes."""
    keep_stderr()
    write_what_can_be_written()
    completing()
    with listening():
        try:
            # typer returns the code of an Exit instead of raising it
            code = app(arguments, standalone_mode=False)
            finish(code if isinstance(code, int) else ExitCode.OK)
        except (Interruption, KeyboardInterrupt, typer.Abort) as asked:
            ignore()
            by = f" by {name_of(asked)}" if exit_code(asked) != ExitCode.INTERRUPTED else ""
            hints = getattr(asked, "__notes__", ())
            print(
                f"\ninterrupted{by}; nothing is left running",
                *map(printable, hints),
                sep="\n",
                file=sys.stderr,
            )
            sys.exit(exit_code(asked))
        except OSError as error:
            fail_on_this_machine(error)
        except Exception as error:  # noqa: BLE001  the last line of defence: classify, print, exit
            fail(error)


def _print_version(asked: bool) -> None:
    if asked:
        print_line(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Show help where no verb is named."""
    if context.invoked_subcommand is None:
        print_line(context.get_help())
        raise typer.Exit(ExitCode.INPUT)
