"""Where a probe is: told to the tuner at every turn, timed, and measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from autotune.outcome import Phase, PhaseReport, StressName

if TYPE_CHECKING:  # the meter imports torch, which a probe enters its first phase without
    from autotune.worker.measuring.memory_meter import Meter

TRAINING: tuple[Phase, ...] = ("forward", "backward", "optimizer")
"""The phases that make up a training step."""


class Phases:
    """The current phase and optimizer step, and a report of each phase gone through.

    A report holds the last step that was looked into (`detailed`): seconds are summed over its micro-steps,
    the peak is their largest, `end` the last one's.
    """

    def __init__(self, tell: Callable[[Phase, int], None]) -> None:
        self.phase: Phase = "start"
        self.step = 0
        """Optimizer step, from 1; 0 before the first."""
        self.detailed = True
        """Measure each phase by itself. That slows training: a device that runs behind the Python code is waited for at
        every turn, and an allocator that keeps memory for later gives it back."""
        self.training_peak = 0
        """Most tensor bytes alive at a time during training steps."""
        self.stress: StressName | None = None
        """What a proof loads memory with meanwhile."""
        self.on_end: Callable[[Phase], None] | None = None
        """Called with each phase that ends, before what it leaves is cleared."""
        self.counted_until: float | None = None
        """When memory was read for the last time (`time.monotonic`): what comes later is none of the training's."""
        self._tell = tell
        self._meter: Meter | None = None
        self._reports: dict[Phase, PhaseReport] = {}
        self._opened: float | None = None

    def measure_with(self, meter: Meter) -> None:
        """Measure from now on; before, phases are only told."""
        self._meter = meter

    @property
    def measuring(self) -> bool:
        """Whether there is a meter yet."""
        return self._meter is not None

    @property
    def meter(self) -> Meter:
        """The meter that measures phases; it has to be set before."""
        assert self._meter is not None, "the meter is set before anything is built"
        return self._meter

    def enter(self, phase: Phase) -> None:
        """End the current phase and begin another."""
        self._end(boundary=self.detailed)
        self.phase = phase
        self._tell(phase, self.step)
        self._opened = time.perf_counter()

    def begin_step(self) -> None:
        """Begin the next optimizer step."""
        self.step += 1
        if self.detailed:
            for phase in TRAINING:
                self._reports.pop(phase, None)

    def pause(self) -> None:
        """End the current phase. What follows belongs to none, but a failure there is still reported as in it."""
        self._end(boundary=True)
        self._opened = None

    def reports(self) -> tuple[PhaseReport, ...]:
        """Return the reports in the order in which the phases were first entered."""
        return tuple(self._reports.values())

    def _end(self, boundary: bool) -> None:
        if self._meter is None or self._opened is None:
            return
        if self.on_end is not None:
            self.on_end(self.phase)
        if not boundary:
            return
        if self.detailed:
            self._meter.synchronize()
        seconds = time.perf_counter() - self._opened
        lap = self._meter.lap(self.detailed)
        if self.phase in TRAINING:
            self.training_peak = max(self.training_peak, lap.peak)
        if self.detailed:
            before = self._reports.get(self.phase)
            self._reports[self.phase] = PhaseReport(
                phase=self.phase,
                seconds=seconds + (before.seconds if before else 0.0),
                peak=max(lap.peak, before.peak if before else 0),
                end=lap.end,
            )
