"""Repeat the proof of an emitted file, on the machine that will train from it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.best import Best, Proof
from autotune.devices.find import resolve_device
from autotune.errors import InputError
from autotune.executors.find import find_executor
from autotune.probe.protocol import Inspection
from autotune.proof import judge, proof_request
from autotune.specs import DeviceSpec, Limits
from autotune.tracing import LocalTracer
from autotune.units import format_bytes


def verify(
    file: Path, device: DeviceSpec | None, limits: Limits, say: Callable[[str], None] = lambda _: None
) -> Proof:
    """Relaunch what `file` says and compare with what it recorded.

    `device` replaces the recorded one. On a device of another name the speed is shown but not judged: it was
    never promised there. Raises InputError for an unreadable file or a missing device.
    """
    best = Best.read(file)
    chosen = device or recorded_device(best)
    if resolve_device(chosen).kind == "sim":
        raise InputError(
            "a proof needs a real device, and there is none of this kind here; a simulated one proves nothing"
        )
    executor = find_executor(chosen, LocalTracer(), best.gpus, best.nodes)
    facts = executor.facts
    say(f"proving {file} on {facts.name} with {format_bytes(facts.budget)}")
    request = proof_request(best, limits.proof_seconds, facts.torch_name, facts.budget)
    # Beside the file rather than in the system's temporary folder, which may be memory itself.
    with tempfile.TemporaryDirectory(prefix=".verify-", dir=file.resolve().parent) as folder:
        timeout = limits.probe_timeout + 3 * limits.proof_seconds
        finding = executor.run(request, Path(folder), timeout=timeout)
    assert not isinstance(finding.answer, Inspection)
    same = facts.name == best.device.name
    return judge(best, finding.answer, finding.seconds, limits, judge_speed=same)


def recorded_device(best: Best) -> DeviceSpec:
    """Return the device that a file's numbers are of; for predictions, the first GPU there is."""
    if best.device.kind == "cpu":
        return DeviceSpec(kind="cpu", budget=best.memory.budget)
    return DeviceSpec(kind="cuda", index=int(best.device.torch_name.partition(":")[2] or 0))
