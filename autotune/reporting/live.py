"""The terminal while a run is under way: one line a probe, and below them what happens now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from autotune.candidate import Candidate
from autotune.outcome import Lost, Ok
from autotune.probe.protocol import Progress
from autotune.reporting.tables import not_measured, speed_cell, trial_line, trial_table
from autotune.reporting.time_left import time_left
from autotune.run.callbacks import RunCallbacks
from autotune.run.events import RungTraced
from autotune.run.record import Counted
from autotune.search.context import SearchContext
from autotune.search.finals import Rematch
from autotune.search.selection import Score
from autotune.search.strategy import Done, Skip, Try
from autotune.search.wording import PHASES, skipped, verdict
from autotune.specs import ABSENT, ModelFacts, RunSpec
from autotune.techniques.families import title as title_of
from autotune.trial import History, ProofFinished, RematchFinished, Trial
from autotune.units import format_bytes, format_count, format_counted, format_duration


class NowLine:
    """The line that says what a run does now. It moves, so that one sees that it lives."""

    def __init__(self) -> None:
        # One for all time: a new one would begin anew each time that it is drawn.
        self._spinner = Spinner("dots")

    def say(self, *parts: str) -> RenderableType:
        """Return the line with these parts, without those that are empty."""
        self._spinner.update(text=Text("  ".join(filter(None, parts)), style="cyan"))
        return self._spinner


class Terminal(RunCallbacks):
    """Callbacks that show a live table on a terminal, and plain lines anywhere else (a log, CI)."""

    def __init__(self, console: Console, spec: RunSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._spec = spec
        self._context: SearchContext | None = None
        self._trials: History = ()
        self._ahead = 0
        self._proving = False
        self._line = NowLine()
        self._now = ""
        self._phase = ""
        self._began = self._clock()
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=4, transient=True,
            vertical_overflow="visible",
        )  # fmt: skip

    def __enter__(self) -> Terminal:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the table on the screen as it is; the line below it goes."""
        if self._console.is_terminal:
            self._live.stop()
            if self._context is not None and self._trials:
                self._console.print(self._table())

    def inspecting(self) -> None:
        """Print that the model is being looked at."""
        self._say(f"looking at {self._spec.model.name}")

    def inspected(self, facts: ModelFacts, context: SearchContext, history: History) -> None:
        """Print model, device and global batch, and the trials that a resumed run has already."""
        self._context = context
        self._trials = history
        goal, batches = self._spec.goal, context.batches(context.base)
        blocks = f"{facts.blocks} x {facts.block_class}" if facts.block_class else "no repeated block found"
        each, many = (" each", "s") if goal.gpus > 1 else ("", "")
        where = f"{goal.gpus} device{many}" + (f" in {goal.nodes} nodes" if goal.nodes > 1 else "")
        if self._spec.device.kind in ABSENT:
            self._console.print(not_measured(self._spec.device))
        self._console.print(
            Text.assemble(
                (self._spec.model.name, "bold"),
                f"  {format_count(facts.parameters)} parameters, {facts.model_class}, {blocks}\n",
                (context.site.device.name if context.site else str(self._spec.device), "bold"),
                f"  {format_bytes(context.budget)}{each}, of which {context.goal.headroom:.0%} stay free\n",
                (f"{format_count(context.target)} tokens a step", "bold"),
                f"  on {where}, {batches.tokens_per_sample} tokens a sample, "
                f"micro-batch at most {format_count(batches.limit)}\n",
            )
        )
        if history:
            self._say(f"{len(history)} finished probes are taken from the journal")
            for trial in history:
                self._plain(trial)

    def tracing(self, candidates: Sequence[Candidate]) -> None:
        """Print which rung is being traced, or how many."""
        first, others = candidates[0], len(candidates) - 1
        self._say(f"tracing {title_of(first)}" + (f" and {others} more" if others else ""))

    def traced(self, entry: RungTraced) -> None:
        """Print why a rung is not predicted, where it is not."""
        self._now = ""
        if entry.reason:
            title = title_of(entry.candidate)
            self._console.print(Text(f"{title} is not predicted: {entry.reason}", style="yellow"))

    def skipping(self, skip: Skip) -> None:
        """Print what is skipped, and the prediction that says so."""
        assert self._context is not None
        self._console.print(Text(skipped(skip.candidate, skip.prediction, self._context), style="dim"))

    def trying(self, number: int, attempt: Try, ahead: int) -> None:
        """Print which probe begins, and why."""
        candidate = attempt.candidate
        self._ahead = ahead
        self._say(
            f"probe {number}: {title_of(candidate)}, micro-batch {candidate.micro_batch} ({attempt.why})"
        )

    def progressing(self, progress: Progress) -> None:
        """Show the phase that the worker is in."""
        self._phase = PHASES[progress.phase] + (f", step {progress.step}" if progress.step else "")

    def tried(self, trial: Trial) -> None:
        """Print a finished probe."""
        assert self._context is not None
        self._trials += (trial,)
        self._ahead = max(0, self._ahead - 1)
        self._now = ""
        self._plain(trial)

    def lost(self, work: Counted, number: int, outcome: Lost) -> None:
        """Print that something outside ended a probe, a rematch or a proof."""
        self._console.print(
            Text(f"{work} {number} was ended from outside: {outcome.message}", style="yellow")
        )

    def searched(self, done: Done) -> None:
        """Print why the search is over."""
        self._say(f"search over: {done.why}")

    def rematching(self, trial: Trial, rematch: Rematch) -> None:
        """Print which finalist is measured again."""
        what = f"{title_of(trial.candidate)}, micro-batch {trial.candidate.micro_batch}"
        self._ahead = len(rematch.finalists) - rematch.finalists.index(rematch.number)
        self._say(f"finals, round {rematch.round}: probe {trial.number} again, {what}")

    def rematched(self, rematch: RematchFinished) -> None:
        """Print how fast it was, or that it did not train as it had before."""
        assert self._context is not None
        self._ahead = max(0, self._ahead - 1)
        self._now = ""
        trial = next(trial for trial in self._trials if trial.number == rematch.number)
        again = trial.model_copy(update={"outcome": rematch.outcome})
        trained = isinstance(rematch.outcome, Ok)
        said = (
            f"{speed_cell(again, self._context)} tokens/s"
            if trained
            else verdict(rematch.outcome, self._context)
        )
        style = "" if trained else "yellow"
        self._console.print(Text(f"round {rematch.round}, probe {rematch.number} again: {said}", style=style))

    def settled(self, why: str) -> None:
        """Print what the finals showed."""
        self._say(f"finals over: {why}")

    def proving(self, score: Score) -> None:
        """Print which configuration is relaunched."""
        candidate = score.trial.candidate
        what = f"{title_of(candidate)}, micro-batch {candidate.micro_batch}"
        self._ahead, self._proving = 0, True
        self._say(f"proving probe {score.trial.number} from its file: {what}")

    def proved(self, proof: ProofFinished) -> None:
        """Print what the relaunch showed."""
        self._now, self._proving = "", False
        style = "green" if proof.passed else "yellow"
        self._console.print(Text(f"proof of probe {proof.number}: {proof.why}", style=style))

    def _say(self, what: str) -> None:
        self._now, self._phase, self._began = what, "", self._clock()
        if not self._console.is_terminal:
            self._console.print(what, soft_wrap=True)

    def _plain(self, trial: Trial) -> None:
        """Print a finished trial as one line, where there is no live table."""
        if self._console.is_terminal or self._context is None:
            return
        self._console.print(trial_line(trial, self._context), soft_wrap=True)

    def _table(self, most: int | None = None) -> RenderableType:
        assert self._context is not None
        shown = self._trials if most is None else self._trials[-most:]
        table = trial_table(shown, self._context)
        earlier = len(self._trials) - len(shown)
        return (
            Group(Text(f"{format_counted(earlier, 'earlier probe')} above", style="dim"), table)
            if earlier
            else table
        )

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._context is not None and self._trials:
            # What is taller than the window cannot be drawn anew in place; a row may take two lines in a narrow one.
            parts.append(self._table(most=max(3, (self._console.height - 10) // 2)))
        if self._now:
            elapsed = format_duration(self._clock() - self._began)
            parts.append(self._line.say(self._now, self._phase, elapsed))
            if left := self._left():
                parts.append(Text(f"  {left}", style="dim"))
        return Group(*parts)

    def _left(self) -> str:
        """Return the time left for the whole run, about."""
        if self._context is None:
            return ""
        elapsed = self._clock() - self._began
        return time_left(self._spec, self._trials, self._ahead, elapsed, self._proving)
