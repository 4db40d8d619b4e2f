"""What is done with a run that ended: `autotune report`, `autotune verify` and `autotune export`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import completion
from autotune.cli.help import BySubject
from autotune.cli.parameters import OUTPUT, Given, JsonOption, RunArgument, RunsOption, options_of, takes
from autotune.exit_codes import ExitCode
from autotune.exports import EXPORTERS
from autotune.exports.launchers import LAUNCHERS, launcher_files, require_launcher
from autotune.options import Limits, ProofLimits, VerifyOptions
from autotune.terminal import console_for, print_error, print_json, print_line, say

if TYPE_CHECKING:
    from autotune.run.paths import RunPaths

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=BySubject)
def report(
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN [OTHER]",
            help="Name or path of a run; last is the newest. A second one is set beside the first.",
            autocompletion=completion.runs,
        ),
    ] = None,
    mermaid: Annotated[
        bool,
        typer.Option(
            "--mermaid", rich_help_panel=OUTPUT,
            help="Print the decision graph with the path taken, as Mermaid.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", rich_help_panel=OUTPUT, help="Write the report as a page."),
    ] = None,
    optuna: Annotated[
        Path | None,
        typer.Option(
            "--optuna", metavar="FILE", rich_help_panel=OUTPUT,
            help="Write the trials as a study of Optuna, which its dashboard opens.",
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Show what a run tried, which path it took, and what won; or compare two."""
    from autotune.errors import InputError
    from autotune.reporting.document import document, drawing, print_report
    from autotune.run.folder import find_run

    names = named or ["last"]
    if len(names) > 2:
        raise InputError(f"{len(names)} runs: name one, or two to compare", about="run")
    if len(names) == 2:
        if mermaid or optuna is not None:
            raise InputError("--mermaid and --optuna are of one run; name it alone", about="run")
        before, after = (find_run(name, runs) for name in names)
        _compare(before, after, html, json)
        return
    paths = find_run(names[0], runs)
    if html is not None:
        from autotune.reporting.page import write_page

        write_page(paths, html)
        print_line(str(html))
    if optuna is not None:
        from autotune.reporting.optuna_study import write_study

        write_study(paths, optuna)
        print_line(str(optuna))
    if json:
        print_json(document(paths))
    elif mermaid:
        print_line(drawing(paths).rstrip())
    elif html is None and optuna is None:
        print_report(paths, console_for(stderr=False))


def _compare(before: RunPaths, after: RunPaths, html: Path | None, json: bool) -> None:
    """Set two runs side by side."""
    from autotune.reporting.comparison import (
        RunComparison,
        comparison_data,
        print_comparison,
        write_comparison,
    )

    found = RunComparison.read(before, after)
    if html is not None:
        write_comparison(found, html)
        print_line(str(html))
    if json:
        print_json(comparison_data(found))
    elif html is None:
        print_comparison(found, console_for(stderr=False))


@app.command(cls=BySubject)
@takes(*options_of(VerifyOptions))
def verify(
    given: Given,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="best.yaml files, or runs by folder, name or last."),
    ] = None,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Repeat the proof of emitted configurations on this machine, one after the other."""
    from autotune.errors import AutotuneError
    from autotune.exit_codes import worst
    from autotune.run.folder import find_best
    from autotune.run.verify import Verified, read_device
    from autotune.run.verify import verify as repeat

    options = VerifyOptions.load_with(
        given.options, "options", lambda rest: read_device(rest.device), given.options
    )
    limits = Limits(**options.part(ProofLimits).model_dump())
    other = read_device(options.device)
    console = console_for()
    verdicts = []
    for name in files or ["last"]:
        try:
            file = find_best(name, runs)
            verdict = Verified.of(
                file, repeat(file, other, limits, partial(say, console), runs, options.trust_remote_code)
            )
        except AutotuneError as error:  # of one file: the others are verified all the same
            verdict = Verified.failed(name, error)
            print_error(error)
        else:
            say(console, f"{verdict.file}: {verdict.why}", "green" if verdict.passed else "red")
        verdicts.append(verdict)
    if json:
        print_json([verdict.model_dump(mode="json") for verdict in verdicts])
    raise typer.Exit(worst(verdict.exit_code for verdict in verdicts))


@app.command(cls=BySubject)
def export(
    run: RunArgument = "last",
    to: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=OUTPUT,
            help=f"Which library: {', '.join(EXPORTERS)}.",
            autocompletion=lambda: list(EXPORTERS),
        ),
    ] = "native",
    launcher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=OUTPUT,
            help=f"What starts it: {', '.join(LAUNCHERS)}.",
            autocompletion=lambda: list(LAUNCHERS),
        ),
    ] = "torchrun",
    image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", rich_help_panel=OUTPUT, help="Container that has the library, for its pods."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", rich_help_panel=OUTPUT, help="Folder to write to.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            rich_help_panel=OUTPUT,
            help="Train two steps from the files, and compare with the record.",
        ),
    ] = False,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Write the winner as files that a training library loads."""
    from autotune.errors import all_of
    from autotune.exports import export as render
    from autotune.exports import not_proven, require_target
    from autotune.run.best import Best
    from autotune.run.folder import find_best
    from autotune.run.paths import RunPaths
    from autotune.run.write_best import NOTES, write_files

    file, *_ = all_of(
        lambda: find_best(run, runs), lambda: require_target(to), lambda: require_launcher(launcher)
    )
    best = Best.read(file)
    if best.evidence in NOTES:
        console_for().print(NOTES[best.evidence], style="yellow")
    folder = out or RunPaths(file.parent).exports / to
    files = render(best, to)
    written = write_files({**files, **launcher_files(best, launcher, image)}, folder)
    sentences = not_proven(best, to)
    for sentence in sentences:
        say(console_for(), sentence, "yellow")
    checked = None
    if check:
        from autotune.exports.check import check as train

        checked = train(best, to, files)
        say(console_for(), checked.why, "green" if checked.passed else "red")
    if json:
        document = {"target": to, "files": [str(path) for path in written], "not_proven": list(sentences)}
        print_json(document | ({"check": checked.model_dump(mode="json")} if checked else {}))
    else:
        for path in written:
            print_line(str(path))
    if checked is not None and not checked.passed:
        raise typer.Exit(ExitCode.NOTHING_PROVEN)
