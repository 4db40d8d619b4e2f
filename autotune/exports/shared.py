"""What the exports to Hugging Face's libraries have in common: model, example data, start script."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from autotune.candidate import allocator_options
from autotune.devices import allocator
from autotune.run.best import Best

ALLOCATOR = "launch.sh: PYTORCH_ALLOC_CONF (no effect on a cpu)"
"""Where an export has the options of CUDA's allocator: `launch_files` sets them."""
SCRIPTS = Path(__file__).with_name("scripts")

THREADS = """\
# Launchers start a process with one thread unless told otherwise; the numbers were recorded with torch's own.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$("$PYTHON" -c 'import torch; print(torch.get_num_threads())')}"
"""


ALLOCATE = f"""\
# Memory as it was measured without this too; at the speed that was measured only with it. One of your own goes first.
if [ -z "${{LD_PRELOAD:-}}" ] && [ "${{PWD#*[: ]}}" = "$PWD" ]; then
    made="allocator.so.$$"
    [ -e allocator.so ] ||
        {{ ${{CC:-cc}} {" ".join(allocator.FLAGS)} -o "$made" allocator.c && mv "$made" allocator.so; }} ||
        echo "launch.sh: allocator.c was not built, so training is slower than measured; CC names a C compiler" >&2
    if [ -e allocator.so ]; then export LD_PRELOAD="$PWD/allocator.so"; fi
fi
"""
"""Lines of shell that build the allocator and load it: `devices/allocator.c`."""

EXAMPLES = 64
"""Rows of example data, which repeat."""


def script(name: str) -> str:
    """Return a script that is exported as it stands."""
    return (SCRIPTS / name).read_text("utf-8")


def pretty(values: Mapping[str, Any]) -> str:
    """Return JSON for people."""
    return json.dumps(values, indent=2) + "\n"


def yaml_text(values: Mapping[str, Any], about: str) -> str:
    """Return YAML, with a comment ahead of it."""
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(_quoted(dict(values)), text)
    return "".join(f"# {line}\n" for line in about.splitlines()) + text.getvalue()


_OLD_BOOLEANS = frozenset({"y", "n", "yes", "no", "on", "off"})


def _quoted(value: Any) -> Any:
    """Quote what readers of YAML 1.1, which most of these libraries are, would take for true or false."""
    if isinstance(value, Mapping):
        return {name: _quoted(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_quoted(part) for part in value]
    if isinstance(value, str) and value.lower() in _OLD_BOOLEANS:
        return SingleQuotedScalarString(value)
    return value


MAKE_INPUTS = '[ -e model ] || "$PYTHON" make_inputs.py\n'
"""What a start script does first, where a command line is named folders of a model and of data."""


def input_files(best: Best, rows: str) -> dict[str, str]:
    """Return the files that make folders of a model and of example data, for a command line that is named both.

    `rows` is what a row of data holds: `tokens` (numbers), or `text` that a tokenizer makes as many of. There are as
    many rows as a global batch has, so that each pass over them is one optimizer step.
    """
    return {
        **model_files(best, rows=rows, count=best.accumulation.steps * best.accumulation.micro_batch
                      * best.accumulation.world_size),
        "make_inputs.py": script("make_inputs.py"),
    }  # fmt: skip


def model_files(best: Best, **more: Any) -> dict[str, str]:
    """Return the files that build the model and its example data, for models of transformers.

    `more` is what else the scripts are told.
    """
    assert best.model.config is not None
    settings = {
        "model_class": best.facts.model_class,
        "task": best.facts.task,
        "attention": best.attention if best.candidate.attention == "sdpa" else best.candidate.attention,
        "seq_len": best.seq_len,
        "gpus": best.gpus,
        "precision": best.candidate.precision,
        "sequences": best.candidate.sequences,
        **more,
    }
    rows = {} if best.lengths is None else {"rows.json": json.dumps(_example_rows(best)) + "\n"}
    return {
        **rows,
        "config.json": pretty(best.model.config),
        "settings.json": pretty(settings),
        "model.py": script("model.py"),
        "data.py": script("data.py"),
    }


def _example_rows(best: Best) -> list[tuple[int, ...]]:
    assert best.lengths is not None
    return list(best.lengths.rows(best.candidate.sequences, best.seq_len, best.seed)[:EXAMPLES])


def refuse_prefetch(best: Best) -> str | None:
    """Return why batches in advance cannot be expressed, or None."""
    if best.candidate.prefetch_factor == 2 or best.candidate.num_workers:
        return None
    return "without loader workers nothing is made in advance, and torch's DataLoader refuses the number"


def refuse_packing(best: Best) -> str | None:
    """Return why packed rows would not be kept apart as they were measured, or None."""
    candidate = best.candidate
    if candidate.sequences != "packed" or candidate.attention != "flash_attention_2":
        return None
    return (
        "under flash_attention_2 transformers keeps documents apart in a batch of one row alone, and the Trainer makes "
        "as many rows as the micro-batch. Use --to native"
    )


def refuse_model(best: Best) -> str | None:
    """Return why scripts for transformers' models cannot build this one, or None."""
    if best.model.config is None:
        return "the model is a function of your own, whose batches only the native export knows how to make"
    if best.model.train:
        return (
            f"only {', '.join(best.model.train)} train, and the exported script trains all. Use --to native"
        )
    if best.model.trust_remote_code and best.model.config.get("auto_map"):
        return "the model brings code of its own, which only the native export runs as it was measured"
    return None


def refuse_precision(best: Best) -> str | None:
    """Return why the precision cannot be expressed, or None."""
    if best.candidate.precision == "fp16" and best.device.kind == "cpu":
        return "this library refuses fp16 without a GPU. Use --to native"
    return None


def refuse_task(best: Best) -> str | None:
    """Return why a library for causal language models cannot train this one, or None."""
    if (reason := refuse_model(best)) is not None:
        return reason
    if best.facts.task == "causal-lm":
        return None
    return f"it trains causal language models, and this model's task is {best.facts.task}"


def refuse_ranks(best: Best) -> str | None:
    """Return why several ranks cannot be started, or None."""
    if best.gpus == 1 or best.candidate.distributed:
        return None
    return f"{best.gpus} ranks need a sharding, and the candidate has none"


def refuse_checkpointing(best: Best) -> str | None:
    """Return why checkpointing cannot be expressed as it was measured, or None."""
    if best.candidate.checkpointing == "none":
        return None
    if best.candidate.checkpointing != "full":
        return (
            f"{best.candidate.checkpointing!r} is autotune's own choice of what to keep; transformers checkpoints "
            "every layer whole. Use --to native"
        )
    if best.model.block_class is None:
        return None
    return (
        f"it was measured on blocks of the class that you named ({best.model.block_class}); transformers "
        "checkpoints the layers that its own model marks. Use --to native, or tune without --block-class"
    )


def on_all_ranks(best: Best, program: str) -> str:
    """Return the interpreter's arguments that start a program as every rank of this machine.

    Of several machines each says by NODE_RANK which it is (from 0), and by MASTER_ADDR where the first one is.
    """
    if best.gpus == 1:
        return program
    if best.nodes == 1:
        return f"-m torch.distributed.run --standalone --nproc_per_node={best.gpus} {program}"
    return (
        f"-m torch.distributed.run --nnodes={best.nodes} --nproc_per_node={best.gpus // best.nodes} "
        '--node_rank="${NODE_RANK:?number of this machine, from 0}" '
        '--master_addr="${MASTER_ADDR:?address of the machine whose NODE_RANK is 0}" '
        f'--master_port="${{MASTER_PORT:-29500}}" {program}'
    )


def launch_files(best: Best, command: str, first: str = "") -> dict[str, str]:
    """Return launch.sh, which starts `command` with the environment that the numbers were recorded under.

    With it comes the source of the allocator, which it builds, where they were recorded with that. `PYTHON` names the
    interpreter (default: `python`); further arguments go to what trains. `first` are lines of shell that go before it,
    under the same environment.
    """
    variables = dict(best.variables)
    caching = variables.pop(allocator.VARIABLE, None) == allocator.CACHING
    if best.nodes > 1:  # the probes' own was loopback; between machines gloo finds its way by the host's name
        variables.pop("GLOO_SOCKET_IFNAME", None)
    lines = []
    if best.device.kind == "cuda":
        options = allocator_options(variables.get("PYTORCH_ALLOC_CONF", ""), best.candidate)
        variables |= {"PYTORCH_ALLOC_CONF": options, "PYTORCH_CUDA_ALLOC_CONF": options}
        # The recorded value names one GPU of one machine.
        variables.pop("CUDA_VISIBLE_DEVICES", None)
        if best.gpus == 1:
            lines = [
                "# One GPU, whichever you choose: on all that it sees, transformers' Trainer enlarges the batch.",
                'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"',
            ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    exports = "".join(f"{line}\n" for line in lines)
    threads = THREADS if best.device.kind == "cpu" else ""
    launch = (
        "#!/bin/sh\n"
        "# Starts the training as it was measured. Arguments go to what trains.\n"
        "set -eu\n"
        'cd "$(dirname "$0")"\n'
        'PYTHON="${PYTHON:-python}"\n'
        f"{exports}{threads}{ALLOCATE if caching else ''}"
        f'{first}exec "$PYTHON" {command} "$@"\n'
    )
    return {"launch.sh": launch, **({"allocator.c": allocator.source()} if caching else {})}
