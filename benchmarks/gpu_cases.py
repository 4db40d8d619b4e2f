"""What `gpu_evidence.py` looks at on a GPU, by its value: what proves the tuner first, what explains it after that."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.candidate import Candidate
from autotune.devices.device import Device
from autotune.devices.find import check_device, find
from autotune.devices.hardware import find_hardware, lookup
from autotune.devices.monitor.find import open_monitor
from autotune.devices.simulated import SimulatedDevice
from autotune.errors import AutotuneError
from autotune.executors.executor import Executor
from autotune.executors.find import find_executor, find_tracer
from autotune.executors.local import LocalExecutor
from autotune.executors.simulated import SimulatedExecutor
from autotune.models.resolve import resolve
from autotune.options import Limits, RunOptions
from autotune.outcome import Crash, Ok, Oom
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import Inspection, ProbeRequest
from autotune.probe.warm import WarmLauncher
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.run.spec import to_spec
from autotune.search.shipped import load_space
from autotune.search.wording import detail
from autotune.specs import DeviceSpec
from autotune.techniques.families import title as title_of
from autotune.tracing.client import LocalTracer
from benchmarks.evidence import KEPT_TRACEBACK, Attachments, Case
from benchmarks.gpu_grid import PARTS, GpuGrid
from benchmarks.gpu_grid import definition as grid_definition
from benchmarks.gpu_roofline import beside, host_link, shares

ROOT = Path(__file__).resolve().parent.parent
SIMULATED = "h200-sxm-141gb"
"""What a dry run stands for."""
DRY = 15.0
"""Seconds that a case of a dry run gets: more than it takes where nothing else runs."""
PROBE = 75.0
"""Seconds of a probe, at most: a visit is short."""
SAMPLED = 3.0
"""Seconds of measured steps."""
ACCUMULATION = 8
"""Micro-steps of a global step."""
RUNGS = 20
"""Of the ladder, whose memory is compared."""
MICRO_BATCHES = (2, 8)
MODELS = {"gpt2-medium": 1024, "llama-3.2-1b": 2048}
"""Models of the comparison, with their sequence lengths."""
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt2-medium", {"compile": "regional"}),
    ("llama-3.2-1b", {"compile": "regional"}),
    ("llama-3.2-1b", {"kernels": "liger"}),
    ("llama-3.2-1b", {"precision": "fp8"}),
    ("llama-3.2-1b", {"attention": "flash_attention_2"}),
    ("llama-3.2-1b", {"attention": "flex_attention"}),
    ("llama-3.2-1b", {"loss": "chunked"}),
    ("llama-3.2-1b", {"optimizer": "adamw-8bit"}),
    ("llama-3.2-1b", {"activation_offload": True}),
    ("llama-3.2-1b", {"garbage_collection_threshold": "80%"}),
)
LARGEST_PACKED = 1 << 20
"""Bytes of a file of a run that is kept."""
CONTEXT = """
import json, sys, time, torch
torch.zeros(1, device="cuda:0"); torch.cuda.synchronize()
print(json.dumps({"reserved": torch.cuda.memory_reserved(), "capability": torch.cuda.get_device_capability(),
    "torch": torch.__version__, "cuda": torch.version.cuda, "name": torch.cuda.get_device_name()}), flush=True)
sys.stdin.read()
"""
"""A process that makes a context, says what torch knows of it, and stays until its input ends."""


class TestsFailed(Exception):
    """A file of tests ended with something else than 0."""


@dataclass
class Bench:
    """One device with what runs on it, for all cases of a call."""

    text: str
    """As `--device` names it; `sim` for a dry run."""
    attachments: Attachments
    closing: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        spec = f"sim:{SIMULATED}" if self.text == "sim" else self.text
        self.spec = check_device(DeviceSpec.parse(spec))
        self.device: Device = find(self.spec)
        self.launcher: Launcher = self.closing.enter_context(WarmLauncher())
        self.tracer = LocalTracer(launcher=self.launcher)
        self.row = find_hardware(SIMULATED) if self.dry else lookup(self.device.facts().name)

    def measuring(self, launcher: Launcher) -> Executor:
        """Return what measures on the device; on a simulated one what predicts, anew: it knows rungs, and no models."""
        if self.dry:
            return find_executor(self.spec, self.tracer, launcher=launcher)
        return LocalExecutor(self.device, launcher)

    @property
    def dry(self) -> bool:
        """Whether nothing is measured: every part of the script runs, on the smallest model."""
        return self.spec.kind == "sim"

    def probe(
        self, model: str, seq_len: int, candidate: Candidate, left: float, launcher: Launcher | None = None
    ) -> dict[str, Any]:
        """Predict and measure one candidate; bytes and seconds, or what ended it."""
        facts = self.device.facts()
        executor = self.measuring(launcher or self.launcher)
        request = ProbeRequest(
            kind="train", model=resolve(model, base=ROOT), candidate=candidate, seq_len=seq_len,
            accumulation_steps=ACCUMULATION, device=facts.torch_name, budget=facts.budget, seed=0,
            sample_seconds=SAMPLED, sample_steps=20, folder="",
        )  # fmt: skip
        row: dict[str, Any] = {
            "model": model, "seq_len": seq_len, "rung": title_of(candidate.rung()),
            "micro_batch": candidate.micro_batch, "candidate": candidate.model_dump(exclude_defaults=True),
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            folder, began = Path(name), time.monotonic()
            found = executor.run(request, folder / "probe", timeout=PROBE if self.dry else min(PROBE, left))
            row |= {"measured": _numbers(found.answer), "seconds": time.monotonic() - began}
            rest = left - (time.monotonic() - began)
            if self.row is not None and rest > 0:
                predicting = SimulatedExecutor(SimulatedDevice(self.row), self.tracer, self.launcher)
                predicted = predicting.run(request, folder / "trace", timeout=rest)
                row["predicted"] = _numbers(predicted.answer)
                row["roofline"] = self._roofline(request, folder / "again", left - (time.monotonic() - began))
        return row

    def _roofline(self, request: ProbeRequest, folder: Path, left: float) -> dict[str, Any] | None:
        """Return a step's engines, of the trace that the prediction has left in the cache; None where there is none."""
        if self.row is None or left <= 0:
            return None
        timeline = self.tracer.trace(request, folder, timeout=left)[request.candidate].timeline
        return None if timeline is None else beside(timeline, request.candidate, self.row, ACCUMULATION)


def _numbers(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Oom):
        return {"verdict": "oom", "where": answer.where, "phase": answer.phase, "requested": answer.requested,
                "free": answer.free}  # fmt: skip
    if not isinstance(answer, Ok):
        said = answer.traceback[-KEPT_TRACEBACK:] if isinstance(answer, Crash) else ""
        return {"verdict": answer.kind, "detail": detail(answer), "traceback": said}
    memory, timing = answer.memory, answer.timing
    assert timing is not None, "nothing is raced here"
    return {
        "verdict": "ok", "allocated": memory.allocated, "reserved": memory.reserved,
        "device_peak": memory.device_peak, "baseline": memory.baseline, "retries": memory.allocator_retries,
        "breakdown": memory.breakdown.model_dump(), "micro_step": timing.micro_step.mean,
        "optimizer_step": timing.optimizer_step.mean, "global_step": timing.global_step(ACCUMULATION),
        "interval": timing.interval(ACCUMULATION),
        "data_wait": timing.data_wait.mean if timing.data_wait else None,
        "attention": answer.attention, "attention_kernels": list(answer.attention_kernels),
    }  # fmt: skip


def doctor(_: Bench, left: float) -> dict[str, Any]:
    """Run `python -m autotune doctor`, as a user types it in a checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "doctor"], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=left,
    )  # fmt: skip
    return {"code": done.returncode, "said": done.stdout[-8000:], "errors": done.stderr[-2000:]}


def facts(bench: Bench, left: float) -> dict[str, Any]:
    """Ask the monitor before the first context, while there is one, and behind it."""
    found: dict[str, Any] = {"device": bench.device.facts().model_dump(mode="json")}
    if bench.dry:
        return found
    own = bench.device.environment(Candidate())
    monitor, name = open_monitor(), own["CUDA_VISIBLE_DEVICES"]

    def level() -> dict[str, Any]:
        return {"used": monitor.memory(name).used, "processes": list(monitor.processes(name))}

    found["before"] = level()
    with subprocess.Popen(
        [sys.executable, "-c", CONTEXT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
    ) as process:
        assert process.stdout is not None
        found["torch"] = process.stdout.readline()
        found["during"] = level()
        found["pid"] = process.pid
        assert process.stdin is not None
        process.stdin.close()
    began = time.monotonic()
    found["behind"] = [
        {**level(), "seconds": time.monotonic() - began} for _ in _every(0.1, min(3.0, left / 2))
    ]
    return found


def _every(pause: float, seconds: float) -> Iterator[int]:
    until = time.monotonic() + seconds
    for count in itertools.count():
        yield count
        if time.monotonic() + pause > until:
            return
        time.sleep(pause)


def engines(bench: Bench, model: str, seq_len: int, left: float) -> dict[str, Any]:
    """Time single operators and copies, which the roofline's constants are shares of; a dry run times the processor."""
    about = bench.device.facts()
    request = ProbeRequest(
        kind="inspect", model=resolve(model, base=ROOT), candidate=Candidate(), seq_len=seq_len, accumulation_steps=1,
        device=about.torch_name, budget=about.budget, seed=0, sample_seconds=1, sample_steps=2, folder="",
        time_device=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = bench.measuring(bench.launcher).run(request, Path(folder) / "probe", timeout=left).answer
    assert isinstance(found, Inspection), found
    assert found.speed is not None, "the device's memory ran out"
    environment = {**os.environ, **bench.device.environment(Candidate())}
    link = None if bench.dry else host_link(environment, left)
    reached = None if bench.row is None else shares(found.speed, link, bench.row)
    return {"speed": found.speed.model_dump(), "host_link": link, "shares": reached}


def given_back(bench: Bench, model: str, seq_len: int, left: float) -> dict[str, Any]:
    """Run out of memory by construction, and time until the device is free again."""
    row = bench.probe(model, seq_len, Candidate(micro_batch=1 << (17 if bench.dry else 14)), left)
    began = time.monotonic()
    bench.device.prepare()
    return {**row, "free_again_seconds": time.monotonic() - began}


def whole_run(bench: Bench, options: dict[str, Any], left: float, name: str) -> dict[str, Any]:
    """Run the tuner to its proven winner, or to the end of its time."""
    spec = to_spec(RunOptions(**{"device": str(bench.spec), **options}), check_device, ROOT)
    replays = spec.device.kind == "replay"
    tracer = find_tracer(spec.device, bench.launcher) if replays else bench.tracer
    executor = find_executor(spec.device, tracer) if replays else bench.measuring(bench.launcher)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        paths = create_run(spec, Path(folder))
        ending: dict[str, Any] = {}
        try:
            with _alarm(PROBE if bench.dry else left - 5):  # whose machine may be busy with others
                best = tune(spec, paths, executor, tracer=tracer)
            ending = {"winner": title_of(best.candidate), "tokens_per_second": best.tokens_per_second,
                      "evidence": best.evidence}  # fmt: skip
        except AutotuneError as error:
            ending = {"ended": f"{type(error).__name__}: {error}"}
        except TimeUp:
            ending = {"ended": "its time was up"}
        except Exception as error:  # noqa: BLE001 - what the run came to until then is evidence too
            ending = {
                "failed": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc()[-KEPT_TRACEBACK:],
            }
        journal = paths.journal.read_text("utf-8") if paths.journal.exists() else ""
        packed = Path(folder) / "run.tar.gz"
        pack(paths.root, packed)
        kept = bench.attachments.keep(packed, f"{name.replace(' ', '-')}.tar.gz")
    return {
        **ending, "seconds": time.monotonic() - began, "probes": journal.count('"type":"started"'),
        "ooms": journal.count('"kind":"oom"'), "lines": journal.count("\n"), "file": kept,
    }  # fmt: skip


def pack(folder: Path, target: Path) -> None:
    """Pack the folder of a run, all but what is larger than LARGEST_PACKED, such as snapshots of memory."""
    with tarfile.open(target, "w:gz") as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size <= LARGEST_PACKED:
                packed.add(path, path.relative_to(folder.parent))


class TimeUp(BaseException):
    """The time of a case is up."""


class _alarm:
    """Raise TimeUp in the main thread after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def ring(*_: object) -> None:
            raise TimeUp

        if threading.current_thread() is threading.main_thread():
            self._before: Any = signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, max(0.001, self._seconds))

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)


def launchers(bench: Bench, model: str, seq_len: int, left: float) -> dict[str, Any]:
    """Run the same probe warm and cold, in alternation."""
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + left
    for _ in range(1 if bench.dry else 3):
        for kind, launcher in (("warm", bench.launcher), ("cold", launch)):
            rest = until - time.monotonic()
            if rest > PROBE or not rows:
                row = bench.probe(model, seq_len, Candidate(micro_batch=2), rest, launcher)
                rows.append(
                    {"launcher": kind, "seconds": row["seconds"], "verdict": row["measured"]["verdict"]}
                )
    return {"rows": rows}


def tests(bench: Bench, file: str, left: float) -> dict[str, Any]:
    """Run a file of tests/gpu, where pytest is there."""
    if importlib.util.find_spec("pytest") is None:
        return {"skipped": "pytest is not installed"}
    asked = ["--collect-only"] if bench.dry else ["-m", "gpu"]
    own = {} if bench.dry else bench.device.environment(Candidate())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked, f"tests/gpu/{file}"], cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=left, env={**os.environ, **own},
    )  # fmt: skip
    if done.returncode:
        raise TestsFailed(f"pytest ended with {done.returncode}: {(done.stderr or done.stdout)[-3000:]}")
    return {"code": done.returncode, "said": done.stdout[-6000:]}


def ladder() -> list[Candidate]:
    """Return the rungs of bf16 that the default space allows, and the plain ones of other types: RUNGS of them."""
    space = load_space("default")
    found = [
        Candidate.model_validate({"precision": precision, "checkpointing": kept, "offload": offload, "loss": loss})
        for loss, offload, kept, precision in itertools.product(
            ("full", "chunked"), ("none", "optimizer", "gradients", "full"),
            ("none", "selective", "full", "offloaded"), ("bf16",),
        )
    ]  # fmt: skip
    others = [Candidate(precision="fp32"), Candidate(precision="bf16-pure"), Candidate(precision="fp16")]
    allowed = [candidate for candidate in found if space.refusal(candidate) is None]
    return (allowed[: RUNGS - len(others)] + others)[:RUNGS]


def cases(bench: Bench) -> list[Case]:
    """Return all cases, the most valuable first; on a simulated device small ones of each kind."""
    dry = bench.dry
    models = {"tiny-gpt2": 64} if dry else MODELS
    rungs = ladder()[:2] if dry else ladder()
    batches = MICRO_BATCHES[:1] if dry else MICRO_BATCHES
    small = next(iter(models.items()))
    limits = {"probe_timeout": PROBE, "sample_time": SAMPLED, "proof_time": 20.0}
    no_predict = {
        "model": "tiny-gpt2" if dry else "gpt2", "seq_len": 64 if dry else 1024, "predict": False,
        "target_global_batch": "1Ki" if dry else "512Ki", "space": "minimal", "max_probes": 2 if dry else 12, **limits,
    }  # fmt: skip
    predicted = {
        "model": "tiny-gpt2" if dry else "gpt2-xl", "seq_len": 64 if dry else 1024,
        "target_global_batch": "1Ki" if dry else "4M", "space": "minimal" if dry else None,
        "max_probes": 1 if dry else 8, **limits,
    }  # fmt: skip

    def case(name: str, seconds: float, run: Callable[..., dict[str, Any]], *arguments: Any) -> Case:
        return Case(name, DRY if dry else seconds, lambda left: run(bench, *arguments, left))

    def runs(name: str, seconds: float, options: dict[str, Any]) -> Case:
        return Case(name, DRY if dry else seconds, lambda left: whole_run(bench, options, left, name))

    def probes(section: str, model: str, seq_len: int, candidate: Candidate) -> Case:
        name = f"{section} {model} {title_of(candidate.rung())} x{candidate.micro_batch}"
        return Case(name, DRY if dry else 40, lambda left: bench.probe(model, seq_len, candidate, left))

    found = [
        case("doctor", 20, doctor),
        case("facts", 30, facts),
        case("test_device", 60, tests, "test_device.py"),
        case("given back", PROBE, given_back, small[0], 512 if dry else small[1]),
        runs("run without predictions", 120, no_predict),
        runs("run with predictions", 120, predicted),
    ]
    found.append(case("engines", 60, engines, *small))
    found += [
        probes("memory", model, seq_len, rung.at(size))
        for rung in rungs
        for model, seq_len in models.items()
        for size in batches
    ]
    found += [
        probes("variant", model, MODELS[model], Candidate(**change, micro_batch=4))
        for model, change in (() if dry else VARIANTS)
    ]  # fmt: skip
    asked = grid_definition(str(bench.spec), dry)
    grid = GpuGrid(
        asked, bench.attachments.folder, bench.launcher,
        Limits(sample_time=SAMPLED, sample_steps=10, probe_timeout=PROBE),
    )  # fmt: skip
    found.append(Case("grid begin", DRY if dry else 90, lambda _: grid.begin()))
    found += [
        Case(f"grid part {number}", DRY if dry else 75, grid.part)
        for number in range(1, (1 if dry else PARTS) + 1)
    ]
    replay = {"device": f"replay:{grid.path}", "model": asked.preset, "seq_len": asked.seq_len,
              "target_global_batch": asked.target}  # fmt: skip
    found.append(runs("grid replay", 30, replay))
    found.append(case("launchers", 3 * PROBE, launchers, *small))
    others = sorted(path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    found += [case(file.removesuffix(".py"), 60, tests, file) for file in others if file != "test_device.py"][
        : 0 if dry else None
    ]
    return found
