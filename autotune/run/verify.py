"""Repeat the proof of an emitted file, on the machine that will train from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from autotune.devices.find import resolve_device
from autotune.errors import AutotuneError, InputError, ProbeError
from autotune.executors.find import find_executor
from autotune.executors.scratch import scratch_folder, temporary
from autotune.exit_codes import ExitCode
from autotune.models.function import code_digest
from autotune.options import Limits
from autotune.outcome import Lost
from autotune.probe.protocol import Inspection
from autotune.run.best import Best, Proof
from autotune.run.disk_use import written_bytes
from autotune.run.proof import judge, proof_request
from autotune.specs import ABSENT, DeviceSpec
from autotune.tracing.client import LocalTracer
from autotune.trial import TRIES
from autotune.units import format_bytes
from autotune.validation import Frozen


class Verified(Frozen):
    """What came of one file."""

    file: str
    passed: bool
    exit_code: ExitCode
    why: str
    """What held, which check failed, or why there was no proof."""
    proof: Proof | None = None

    @classmethod
    def of(cls, file: Path, proof: Proof) -> Verified:
        """Return the verdict that a proof gives."""
        code = ExitCode.OK if proof.passed else ExitCode.NOTHING_PROVEN
        return cls(file=str(file), passed=proof.passed, exit_code=code, why=proof.why, proof=proof)

    @classmethod
    def failed(cls, name: str, error: AutotuneError) -> Verified:
        """Return the verdict of what could not be proven at all."""
        return cls(file=name, passed=False, exit_code=error.exit_code, why=str(error))


def read_device(text: str | None) -> DeviceSpec | None:
    """Parse `--device`, where it is given. Raises InputError."""
    try:
        return DeviceSpec.parse(text) if text is not None else None
    except ValueError as error:
        raise InputError(f"--device: {error}", about="device") from None


def verify(
    file: Path,
    device: DeviceSpec | None,
    limits: Limits,
    say: Callable[[str], None] = lambda _: None,
    runs: Path = Path("runs"),
    trust_remote_code: bool = False,
) -> Proof:
    """Relaunch what `file` says and compare with what it recorded.

    `device` replaces the recorded one. On a device of another name the speed is shown but not judged: it was
    never promised there. What the proof writes goes beside the file, else into the folder of the run that the file
    names (under `runs`), else where TMPDIR says: the first that can be written
    to and has room. Beside the file comes first because a system's temporary folder may be memory itself.
    The file may be a stranger's: code that it has transformers fetch from a hub runs only with `trust_remote_code`.
    A proof that something outside ended is tried again.

    Raises InputError for an unreadable file, a missing device or code that is not trusted, NoRoom where no place takes
    what is written, ProbeError for a proof that was ended from outside time and again.
    """
    file = file / "best.yaml" if os.path.isdir(file) else file
    best = Best.read(file)
    if best.model.trust_remote_code and not trust_remote_code:
        raise InputError(
            f"{file} asks for Python code that comes with the model ({best.model.name}); read that code, and allow it "
            "with --trust-remote-code",
            about="trust_remote_code",
        )
    if best.model.command is not None and not trust_remote_code:
        raise InputError(
            f"{file} has a command run ({best.model.name}, in {best.model.command.folder}); read it there, and allow "
            "it with --trust-remote-code",
            about="trust_remote_code",
        )
    if best.model.code is not None and code_digest(best.model.name, best.model.path) != best.model.code:
        say(
            f"the file that defines {best.model.name} is not the one that was proven: it was edited or moved since"
        )
    chosen = device or recorded_device(best)
    if resolve_device(chosen).kind in ABSENT:
        raise InputError(
            "a proof needs a real device, and a simulated or replayed one proves nothing; run it where there is one",
            about="device",
        )
    executor = find_executor(chosen, LocalTracer(), best.gpus, best.nodes, command=best.model.command)
    facts = executor.describe().device
    say(f"proving {file} on {facts.name} with {format_bytes(facts.budget)}")
    request = proof_request(best, limits.proof_time, facts.torch_name, facts.budget)
    # A name; the file may be a stranger's.
    own = (runs / best.run,) if Path(best.run).name == best.run else ()
    places = (file.resolve().parent, *own, temporary())
    with scratch_folder(places, written_bytes(best, facts.kind)) as folder:
        timeout = limits.probe_timeout + 3 * limits.proof_time
        for _ in range(TRIES):
            finding = executor.run(request, folder, timeout=timeout)
            if not isinstance(finding.answer, Lost):
                break
            say(f"the proof was ended from outside: {finding.answer.message}")
    if isinstance(finding.answer, Lost):
        raise ProbeError(
            f"{file}: its proof was ended from outside {TRIES} times, the last by: {finding.answer.message}. "
            "Nothing is known of it; repeat it where nothing ends it"
        )
    assert not isinstance(finding.answer, Inspection)
    same = facts.name == best.device.name
    return judge(best, finding.answer, finding.seconds, limits, judge_speed=same)


def recorded_device(best: Best) -> DeviceSpec:
    """Return the device that a file's numbers are of; for predictions, the first GPU there is."""
    if best.device.kind == "cpu":
        return DeviceSpec(kind="cpu", budget=best.memory.budget)
    return DeviceSpec(kind="cuda", index=best.device.number)
