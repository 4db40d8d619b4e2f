"""What leaves a run: the configuration as `best.yaml` says it, and the files of an export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from autotune.candidate import Candidate
from autotune.errors import unwritable
from autotune.outcome import Drift, Ok
from autotune.printable import printable
from autotune.probe.folder import write_atomically
from autotune.run.best import Alternative, Best, BestDevice, ComparedFinalist, Figure
from autotune.run.journal import now
from autotune.script.command import call
from autotune.search.price import cost_per_million_tokens, joules_per_token
from autotune.search.selection import Choice, Score, mfu
from autotune.site import Site
from autotune.specs import Evidence, Goal, ModelFacts, RunSpec
from autotune.techniques.consent import changing, told
from autotune.training_command import TrainingCall

PREDICTED = (
    "predicted, not measured: nothing was trained. Memory is from a trace and a simulated allocator, speed from a "
    "roofline; `autotune verify` on such a GPU proves it"
)
"""What `best.yaml` says where its numbers are predictions."""

REPLAYED = (
    "replayed, not measured now: memory and speed are those of probes recorded before; `autotune verify` on the device "
    "itself proves it"
)
"""What `best.yaml` says where its numbers are read from a recorded grid."""
SHOWN = 8
"""Files that a note names, at most."""
NOTES: dict[Evidence, str] = {"predicted": PREDICTED, "replayed": REPLAYED}
"""By where numbers come from, what stands beside them; nothing where they were measured."""


def finalist(
    spec: RunSpec,
    run: str,
    score: Score,
    facts: ModelFacts,
    site: Site,
    variables: dict[str, str],
    evaluation_micro_batch: int | None = None,
    drift: Drift | None = None,
    written: tuple[str, ...] = (),
) -> Best:
    """Return the configuration of a trial with its record, before its proof.

    `site` is where the trial ran, `variables` are the environment variables that it ran under;
    `evaluation_micro_batch` is a prediction. `drift` is in the score's interval. `written` are files that a command
    wrote outside of its scratch folders.
    """
    outcome = score.trial.outcome
    assert isinstance(outcome, Ok)
    candidate, goal, device = score.trial.candidate, spec.goal, site.device
    peak = device.peak_flops.get(candidate.math_type)
    share = mfu(score.tokens_per_second, facts, goal.seq_len, peak, goal.gpus) if peak else None
    notes = [NOTES[device.evidence]] if device.evidence in NOTES else []
    if goal.nodes > 1 and not device.simulated:
        notes.append(
            f"groups of {goal.gpus // goal.nodes} ranks on one machine stood for {goal.nodes} nodes: memory is as it "
            "would be on them, the time to communicate between them is not"
        )
    if goal.gpus > 1 and not device.simulated and not candidate.distributed:
        notes.append(
            f"probes ran on one of {goal.gpus} devices: gradient synchronization and its buffers are not in the "
            "recorded time and memory"
        )
    if changed := told(changing(candidate)):
        notes.append(changed)
    if goal.lengths is not None:
        notes.append(_of_rows(goal, candidate))
    if (command := spec.model.command) is not None:
        notes.append(
            "a command of the user's own was probed: of a candidate's axes it was told "
            f"{', '.join(command.axes) or 'none'}, and the others are as its program has them"
        )
        if not command.evaluation:
            notes.append(
                "training steps only: neither an evaluation nor a checkpoint was run; with --evaluation-command a "
                "proof runs them"
            )
        if written:
            more = f" and {len(written) - SHOWN} more" if len(written) > SHOWN else ""
            notes.append(
                f"the command wrote files outside of {{output}}, its scratch folder, and nothing removes them: "
                f"{', '.join(map(printable, written[:SHOWN]))}{more}"
            )
    return Best(
        run=run, created=now(),
        evidence=device.evidence,
        candidate=candidate, accumulation=score.accumulation, seq_len=goal.seq_len, lengths=goal.lengths,
        gpus=goal.gpus, nodes=goal.nodes, strategy=spec.strategy, allowed=spec.allow,
        seed=spec.seed, headroom=goal.headroom, tokens_per_second=score.tokens_per_second,
        tokens_per_second_interval=score.interval, objective=goal.objective,
        cost_per_million_tokens=_figure(cost_per_million_tokens(score, goal)), energy=outcome.energy,
        joules_per_token=_figure(joules_per_token(score)),
        drift=None if device.simulated else drift, seconds_per_global_step=score.seconds, mfu=share,
        attention=outcome.attention, attention_kernels=outcome.attention_kernels,
        evaluation_micro_batch=evaluation_micro_batch, memory=outcome.memory,
        timing=outcome.timing, communication=outcome.communication, notes=tuple(notes),
        device=BestDevice(
            name=device.name, kind=device.kind, torch_name=device.torch_name, number=device.number,
            driver=device.driver,
        ),
        variables=variables,
        environment={
            **site.machine.environment(), "torch": facts.torch_version, "transformers": facts.transformers_version,
        },
        counts_tokens=goal.target.unit == "tokens", command=_call(spec, candidate, score),
        facts=facts, model=spec.model,
    )  # fmt: skip


def _call(spec: RunSpec, candidate: Candidate, score: Score) -> TrainingCall | None:
    """Return how production training starts, where it is a command of the user's own."""
    command, goal, batch = spec.model.command, spec.goal, score.accumulation
    if command is None:
        return None
    numbers: dict[str, int | str] = {
        "micro_batch": candidate.micro_batch, "accumulation": batch.steps, "gpus": goal.gpus // goal.nodes,
        "nodes": goal.nodes, "total_accumulation": batch.steps * batch.world_size,
        "global_batch": candidate.micro_batch * batch.steps * batch.world_size,
        "seq_len": goal.seq_len, "seed": spec.seed, "output": "{output}",
    }  # fmt: skip
    return call(command, candidate, numbers)


def chosen(best: Best, choice: Choice) -> Best:
    """Return what is said of a winner with why it is one, and what could not be told from it."""
    alternatives = tuple(
        Alternative(
            candidate=score.trial.candidate, tokens_per_second=score.tokens_per_second,
            tokens_per_second_interval=score.interval, peak=score.peak,
        )
        for score in choice.alternatives
    )  # fmt: skip
    share = _figure(choice.speed_share)
    return best.model_copy(
        update={"chosen_by": choice.by, "alternatives": alternatives, "share_of_best_speed": share}
    )


def compared(winner: Score, scores: Iterable[Score]) -> tuple[ComparedFinalist, ...]:
    """Return how a winner compared in the finals with each of these that was in them too."""
    return tuple(
        ComparedFinalist(
            candidate=score.trial.candidate, slower=paired.log_speedup, slower_interval=paired.half_width,
            rounds=paired.rounds,
        )
        for score in scores
        if (paired := winner.against(score)) is not None
    )  # fmt: skip


def _figure(found: tuple[float, float] | None) -> Figure | None:
    return None if found is None else Figure(value=found[0], interval=found[1])


def _of_rows(goal: Goal, candidate: Candidate) -> str:
    lengths = goal.lengths
    assert lengths is not None
    tokens = lengths.tokens_per_row(candidate.sequences, goal.seq_len)
    cut = f"; {lengths.cut} of {lengths.samples} sequences are cut to that" if lengths.cut else ""
    return (
        f"batch and speed count no padding: a row of {goal.seq_len} tokens holds {tokens} of {lengths.file} on the "
        f"average{cut}"
    )


def write_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write texts by name into a folder, scripts with the right to run them. Raises InputError."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            write_atomically(path, text)
            if text.startswith("#!"):
                path.chmod(0o755)
            written.append(path)
    except OSError as error:
        raise unwritable(f"{folder} cannot be written", error, "out") from None
    return written
