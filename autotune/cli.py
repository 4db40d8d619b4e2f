"""The command line: a verb is a function.

Nothing heavy is imported at the top: `--help` must answer at once, and no verb ever imports torch.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from autotune import __version__
from autotune.exit_codes import ExitCode, summary
from autotune.interruption import Interruption, exit_code, ignore, listening, name_of
from autotune.printable import printable
from autotune.terminal import (
    console_for,
    fail,
    fail_on_this_machine,
    finish,
    keep_stderr,
    print_error,
    print_item,
    print_json,
    print_line,
    say,
)

if TYPE_CHECKING:
    from autotune.run.paths import RunPaths
    from autotune.specs import RunSpec

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Find the fastest way to train a model that is proven not to run out of memory.",
    epilog=summary(),
)  # fmt: skip
spaces_app = typer.Typer(no_args_is_help=False, help="List and draw search spaces.")
app.add_typer(spaces_app, name="spaces", invoke_without_command=True)

# Options of several verbs.
SeqLen = Annotated[int | None, typer.Option(help="Tokens per sequence.")]
LengthsFile = Annotated[
    str | None, typer.Option(help="File of the dataset's sequence lengths: length,count a line, or JSON.")
]
OptimizerName = Annotated[str | None, typer.Option(help="adamw, adamw-8bit, adafactor, momentum or sgd.")]
Headroom = Annotated[float | None, typer.Option(help="Share of memory that must stay free.")]
BlockClass = Annotated[str | None, typer.Option(help="Class of the repeated transformer block.")]
Trained = Annotated[
    list[str] | None, typer.Option(help="Module or parameter that trains, with *; may be repeated.")
]
TrustRemoteCode = Annotated[
    bool | None, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
MemoryTolerance = Annotated[float | None, typer.Option(help="Peak of the proof against record.")]
SpeedTolerance = Annotated[float | None, typer.Option(help="Speed of the proof against record.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
RunArgument = Annotated[str, typer.Argument(help="Name or path of a run; `last` is the newest.")]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line (of `arguments`, else this process's own); turn errors into messages and exit codes."""
    keep_stderr()
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
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Find the fastest way to train a model that is proven not to run out of memory."""


@app.command()
def run(
    model: Annotated[
        str | None, typer.Option(help="Preset, path to a config.json, hub name, or module:function.")
    ] = None,
    target_global_batch: Annotated[
        str | None, typer.Option(help="Tokens for each optimizer step: 4M, 64Ki, or '512 samples'.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cuda, cuda:1, cpu:3GiB, or sim:h100-80gb.")
    ] = None,
    seq_len: SeqLen = None,
    lengths: LengthsFile = None,
    optimizer: OptimizerName = None,
    gpus: Annotated[int | None, typer.Option(help="Devices that train together, on each node.")] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Machines that train together (cpu and simulated devices).")
    ] = None,
    headroom: Headroom = None,
    exact: Annotated[bool | None, typer.Option("--exact", help="Meet the global batch exactly.")] = None,
    max_probes: Annotated[int | None, typer.Option(help="Probes at most.")] = None,
    time_budget: Annotated[str | None, typer.Option(help="Time for all probes together: 30m.")] = None,
    probe_timeout: Annotated[str | None, typer.Option(help="Time after which a probe is killed.")] = None,
    sample_time: Annotated[str | None, typer.Option(help="Time for the measured steps of a probe.")] = None,
    proof_time: Annotated[str | None, typer.Option(help="Time for the training steps of the proof.")] = None,
    memory_tolerance: MemoryTolerance = None,
    speed_tolerance: SpeedTolerance = None,
    space: Annotated[str | None, typer.Option(help="Search space: a shipped name or a YAML file.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="How to search the space: graph, grid or random.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, data and what is drawn.")] = None,
    predict: Annotated[
        bool | None, typer.Option("--predict/--no-predict", help="Let the memory model spare probes.")
    ] = None,
    block_class: BlockClass = None,
    train: Trained = None,
    trust_remote_code: TrustRemoteCode = None,
    spec: Annotated[Path | None, typer.Option(help="YAML file that holds any of these options.")] = None,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Find, prove and emit the fastest configuration that fits."""
    # The parameters above are the options of a spec file, by the same names; what was not given stays away.
    given = {name: value for name, value in locals().items() if value is not None}
    for name in ("spec", "runs", "json"):
        given.pop(name, None)
    from autotune.devices.find import check_device
    from autotune.options import RunOptions, to_spec
    from autotune.run.folder import new_run

    def resolve(options: RunOptions) -> RunSpec:
        return to_spec(options, check_device, Path.cwd())

    resolved = resolve(RunOptions.gather(given, spec, resolve))
    with new_run(resolved, runs) as paths:
        _tune(resolved, paths, json)


@app.command()
def resume(
    run: RunArgument = "last",
    retry_lost: Annotated[
        bool, typer.Option("--retry-lost", help="Try again what something outside ended each time.")
    ] = False,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted, from its journal."""
    from autotune.run.folder import find_run, load_spec

    paths = find_run(run, runs)
    _tune(load_spec(paths), paths, json, retry_lost)


@app.command()
def verify(
    files: Annotated[
        list[str] | None, typer.Argument(help="best.yaml files, or runs by folder, name or `last`.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Another device than the recorded one.")] = None,
    proof_time: Annotated[str | None, typer.Option(help="Time for the training steps.")] = None,
    memory_tolerance: MemoryTolerance = None,
    speed_tolerance: SpeedTolerance = None,
    trust_remote_code: TrustRemoteCode = None,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Repeat the proof of emitted configurations on this machine, one after the other."""
    from autotune.errors import AutotuneError
    from autotune.exit_codes import worst
    from autotune.run.folder import find_best
    from autotune.run.verify import Verified, read_device
    from autotune.run.verify import verify as repeat
    from autotune.specs import Limits

    given = {
        "proof_seconds": proof_time,
        "memory_tolerance": memory_tolerance,
        "speed_tolerance": speed_tolerance,
    }
    limits = Limits.load({name: value for name, value in given.items() if value is not None}, "options")
    other = read_device(device)
    console = console_for()
    verdicts = []
    for name in files or ["last"]:
        try:
            file = find_best(name, runs)
            verdict = Verified.of(
                file, repeat(file, other, limits, partial(say, console), runs, bool(trust_remote_code))
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


@app.command()
def report(
    run: RunArgument = "last",
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print the decision graph with the path taken, as Mermaid.")
    ] = False,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Show what a run tried, which path it took, and what won."""
    from autotune.reporting.document import document, drawing, print_report
    from autotune.run.folder import find_run

    paths = find_run(run, runs)
    if json:
        print_json(document(paths))
    elif mermaid:
        print_line(drawing(paths).rstrip())
    else:
        print_report(paths, console_for(stderr=False))


@app.command()
def export(
    run: RunArgument = "last",
    to: Annotated[str, typer.Option(help="accelerate, transformers or native.")] = "native",
    out: Annotated[Path | None, typer.Option(help="Folder to write to.")] = None,
    runs: RunsOption = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Write the winner as files that a training library loads."""
    from autotune.exports import export as render
    from autotune.run.best import Best
    from autotune.run.folder import find_best
    from autotune.run.paths import RunPaths
    from autotune.run.write_best import PREDICTED, write_files

    file = find_best(run, runs)
    best = Best.read(file)
    if best.evidence == "predicted":
        console_for().print(PREDICTED, style="yellow")
    folder = out or RunPaths(file.parent).exports / to
    written = write_files(render(best, to), folder)
    if json:
        print_json({"target": to, "files": [str(path) for path in written]})
    else:
        for path in written:
            print_line(str(path))


@app.command()
def estimate(
    model: Annotated[str, typer.Option(help="Preset, path to a config.json, hub name, or module:function.")],
    gpu: Annotated[str | None, typer.Option(help="A known GPU, which need not be there: h100-80gb.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs that train together, on each node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Machines that train together.")] = None,
    seq_len: SeqLen = None,
    lengths: LengthsFile = None,
    micro_batch: Annotated[int | None, typer.Option(help="Samples on each GPU.")] = None,
    accumulation_steps: Annotated[
        int | None, typer.Option(help="Micro-steps of a global step; else 8.")
    ] = None,
    headroom: Headroom = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, bf16-pure or fp8.")] = None,
    attention: Annotated[
        str | None, typer.Option(help="sdpa, eager, flash_attention_2 (flash) or flex_attention (flex).")
    ] = None,
    checkpointing: Annotated[
        str | None, typer.Option(help="none, selective, alternate, every-4, every-2, full or offloaded.")
    ] = None,
    compile: Annotated[
        str | None, typer.Option(help="none (off), or regional (on): the repeated block.")
    ] = None,
    adapters: Annotated[str | None, typer.Option(help="none, lora or qlora.")] = None,
    loss: Annotated[str | None, typer.Option(help="full or chunked.")] = None,
    kernels: Annotated[str | None, typer.Option(help="torch or liger.")] = None,
    offload: Annotated[str | None, typer.Option(help="none, optimizer, gradients or full.")] = None,
    optimizer: OptimizerName = None,
    sharding: Annotated[
        str | None, typer.Option(help="none, ddp, zero1, zero2, hsdp, fsdp2 or zero3, with --gpus.")
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(help="Of --gpus, how many share each model's matrices: 1, 2, 4 or 8.")
    ] = None,
    axis: Annotated[
        list[str] | None, typer.Option(help="Any other axis of a candidate, as NAME=VALUE; may be repeated.")
    ] = None,
    space: Annotated[str | None, typer.Option(help="Search space whose rungs make up the table.")] = None,
    block_class: BlockClass = None,
    train: Trained = None,
    trust_remote_code: TrustRemoteCode = None,
    plot: Annotated[Path | None, typer.Option(help="Draw to a .png or .html file.")] = None,
    json: JsonOption = False,
) -> None:
    """Predict memory and speed of one candidate, or of every rung, on GPUs that need not be there."""
    given = {name: value for name, value in locals().items() if value is not None}
    from autotune.errors import NotPriced
    from autotune.estimation.request import EstimateRequest
    from autotune.estimation.request import estimate as answer_to
    from autotune.estimation.tables import estimates_document, print_estimates
    from autotune.tracing.client import LocalTracer

    for name in ("plot", "json"):
        given.pop(name, None)
    if plot is not None:
        from autotune.estimation.plot import check_picture

        check_picture(plot)
    answer = answer_to(EstimateRequest.gather(given, Path.cwd()), LocalTracer(), Path.cwd())
    if plot is not None and answer.priced:
        from autotune.estimation.plot import draw

        draw(answer, plot)
    if json:
        print_json(estimates_document(answer))
    else:
        print_estimates(answer, console_for(stderr=False))
    if not answer.priced:
        raise NotPriced(f"{answer.model.name} could not be priced: {answer.unpriced[0].reason}")


@app.command()
def doctor(json: JsonOption = False) -> None:
    """Say what this machine offers, and what is missing."""
    from autotune.doctor import diagnose

    findings = diagnose()
    if json:
        print_json([finding.model_dump() for finding in findings])
        return
    from rich.text import Text

    marks = {"ok": ("ok", "green"), "warning": ("!!", "yellow"), "missing": ("--", "red")}
    console = console_for(stderr=False)
    for finding in findings:
        print_item(
            console, marks[finding.state], Text.assemble((finding.subject, "bold"), f": {finding.text}")
        )


@app.command()
def models(json: JsonOption = False) -> None:
    """List the models that resolve by name without a network."""
    from autotune.models.catalog import list_presets

    presets = list_presets()
    if json:
        print_json([preset.model_dump(exclude={"config"}) for preset in presets])
        return
    from autotune.reporting.columns import Column, FittingTable

    table = FittingTable(
        [
            Column("name", [preset.name for preset in presets]),
            Column("family", [preset.family for preset in presets], leaves=1),
            Column("parameters", [f"{preset.parameters:,}" for preset in presets], justify="right"),
            Column("longest\nsequence", [f"{preset.longest:,}" for preset in presets], justify="right"),
            Column("on the hub", [preset.hub or "-" for preset in presets], leaves=2),
        ]
    )
    console = console_for(stderr=False)
    console.print(table)
    console.print("Any config.json, hub name or module:function of your own works as well.")


@spaces_app.callback()
def spaces(context: typer.Context, json: JsonOption = False) -> None:
    """List the search spaces that ship with autotune."""
    if context.invoked_subcommand is not None:
        return
    from autotune.options import load_space, shipped_spaces

    found = [load_space(name) for name in shipped_spaces()]
    if json:
        print_json([space.model_dump(mode="json") for space in found])
        return
    from rich.text import Text

    console = console_for(stderr=False)
    for space in found:
        print_item(console, ("", ""), Text.assemble((space.name, "bold"), f": {space.description}"))
        for axis, values in space.axes.items():
            print_item(console, ("   ", ""), Text(f"{axis}: {', '.join(str(value) for value in values)}"))


@spaces_app.command("draw")
def draw(space: Annotated[str, typer.Argument(help="A shipped name or a YAML file.")] = "default") -> None:
    """Print the decision graph of a search space as Mermaid."""
    from autotune.options import load_space

    print_line(load_space(space).graph.mermaid().rstrip())


def _tune(spec: RunSpec, paths: RunPaths, json: bool, retry_lost: bool = False) -> None:
    """Run the loop under a live table, then show the result."""
    from autotune.commands import command
    from autotune.errors import JournalError, NothingFits, NothingProven, NothingTrained, ProbeError
    from autotune.executors.find import find_executor
    from autotune.reporting.document import document, print_result
    from autotune.reporting.live import Terminal
    from autotune.run.loop import tune
    from autotune.tracing.client import LocalTracer

    console = console_for()
    tracer = LocalTracer()
    try:
        executor = find_executor(spec.device, tracer, spec.goal.gpus, spec.goal.nodes)
        console.print(f"run {paths.root}", style="dim")
        with Terminal(console, spec) as callbacks:
            best = tune(spec, paths, executor, callbacks, tracer, retry_lost)
    except (Interruption, KeyboardInterrupt) as asked:
        asked.add_note(f"Go on with: {command('resume', paths.root)}")
        raise
    except (NothingFits, NothingTrained, NothingProven):
        if json:
            print_json(document(paths))
        raise
    except (JournalError, ProbeError) as error:
        hint = f"When that is mended, go on with: {command('resume', paths.root)}"
        raise type(error)(f"{error}. {hint}") from error
    if json:
        print_json(document(paths))
    print_result(paths, best, console)
