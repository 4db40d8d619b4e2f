"""Train from exported files for two steps, by the library that they are for, and compare with what was recorded."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from autotune.environment import installed
from autotune.errors import InputError, ProbeError
from autotune.exports import EXPORTERS, not_proven
from autotune.options import Limits
from autotune.run.best import Best
from autotune.run.write_best import write_files
from autotune.script.watched import SITE, Watched, read_seen
from autotune.search.comparison import CPU_NOISE
from autotune.units import format_bytes
from autotune.validation import Frozen

STEPS = 2
SHOWN = 20
"""Lines of what a training said that an error shows."""


class Checked(Frozen):
    """What two steps through a library took, beside what was recorded of the same configuration."""

    peak: int
    """Most bytes that one rank's tensors took."""
    recorded_peak: int
    tokens_per_second: Annotated[float, Field(gt=0)]
    """Of the second step alone, so without an interval; it is shown, and not judged."""
    recorded_tokens_per_second: float
    judged: bool
    """Whether the target trains as it was measured; else the difference is to be expected."""
    passed: bool
    """Whether the peak is the recorded one, within the tolerance that proofs have."""
    why: str
    """The comparison, in a sentence."""


def check(best: Best, target: str, files: Mapping[str, str], limits: Limits | None = None) -> Checked:
    """Start launch.sh of exported `files` in a temporary folder for two optimizer steps, and compare.

    Raises InputError where nothing was measured or the library is not installed beside this autotune, ProbeError where
    the training failed, took other than two steps, or ran on another number of ranks.
    """
    if best.evidence != "measured":
        raise InputError(
            f"what is {best.evidence} has no record to compare with; verify it on a real device first",
            about="check",
        )
    limits = limits or Limits()
    module = importlib.import_module(EXPORTERS[target].partition(":")[0])
    package = getattr(module, "PACKAGE", "transformers")
    if installed(package) is None:
        raise InputError(
            f"{package} is not installed here, so nothing can be trained through it; pip install {package}, or leave "
            "out --check",
            about="check",
        )
    with tempfile.TemporaryDirectory(prefix="autotune-check-") as scratch:
        folder, watched = Path(scratch) / "export", Path(scratch) / "watched"
        watched.mkdir()
        write_files(files, folder)
        _train(folder, watched, getattr(module, "STEPS", ("--steps", str(STEPS))), limits.probe_timeout)
        ranks = read_seen(watched).ranks
    if len(ranks) != best.gpus:
        raise ProbeError(f"{target} trained on {len(ranks)} rank(s), and {best.gpus} were measured")
    if any(rank.steps != STEPS for rank in ranks):
        raise ProbeError(f"{target} took {ranks[0].steps} optimizer steps instead of {STEPS}")
    seconds = max(rank.records[-1].seconds for rank in ranks)
    return judge(
        best,
        max(_peak(rank) for rank in ranks),
        best.accumulation.effective / seconds,
        bool(not_proven(best, target)),
        limits,
    )


def _peak(rank: Watched) -> int:
    """Return the most bytes that a rank's tensors took."""
    return rank.memory.cuda.peak if rank.memory.cuda is not None else rank.memory.tensors or 0


def judge(best: Best, peak: int, speed: float, other: bool, limits: Limits) -> Checked:
    """Compare a peak (bytes) and a speed (tokens/s) with the record; `other` says that something else runs there."""
    recorded = seen = best.memory.allocated
    floor = 0
    if best.device.kind == "cpu":
        # The kernel tells tensors and libraries not apart, and some are loaded by the first step: a compiler above all.
        floor, seen = CPU_NOISE, max(recorded, (best.memory.device_peak or 0) - best.memory.baseline)
    below, above = (max(limits.memory_tolerance * most, floor) for most in (recorded, seen))
    near = recorded - below <= peak <= seen + above
    fits = peak <= best.memory.budget
    beside = f" of tensors and {format_bytes(seen)} with libraries" if seen > recorded + floor else ""
    verdict = "as recorded" if near else "which it is not expected to equal" if other else "another peak"
    return Checked(
        peak=peak, recorded_peak=recorded, tokens_per_second=speed,
        recorded_tokens_per_second=best.tokens_per_second, judged=not other, passed=fits and (near or other),
        why=(
            f"peak {format_bytes(peak)}, recorded {format_bytes(recorded)}{beside}: {verdict}; "
            f"{speed:,.0f} tokens/s in one step, recorded {best.tokens_per_second:,.0f}"
        ),
    )  # fmt: skip


def _train(folder: Path, watched: Path, arguments: tuple[str, ...], timeout: float) -> None:
    paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(paths), "AUTOTUNE_WATCH": str(watched),
        "WANDB_MODE": "disabled",
    }  # fmt: skip
    training = subprocess.Popen(
        ["sh", "launch.sh", *arguments], cwd=folder, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = training.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(training.pid, signal.SIGKILL)
        training.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ProbeError(f"two steps took longer than {timeout:.0f} s; --probe-timeout") from None
        raise
    if training.returncode != 0:
        last = "\n".join(said.splitlines()[-SHOWN:])
        raise ProbeError(f"launch.sh ended with {training.returncode}:\n{last}")
