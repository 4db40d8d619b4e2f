"""What a recorded training allocates and releases: a slot for each allocation, and the events of a segment."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from autotune.outcome import Phase
from autotune.timeline.step_events import CATEGORIES, PLACES, Accumulated, StepEvents
from autotune.worker.tracing.module_attribution import Attribution

GRADIENT, ACTIVATION, WORKSPACE, TEMPORARY = (
    CATEGORIES.index(name) for name in ("gradient", "activation", "workspace", "temporary")
)
HOST, DEVICE, DISK = (PLACES.index(name) for name in ("host", "device", "disk"))
_ACCUMULATE = "torch::autograd::AccumulateGrad"


class Allocations:
    """All allocations so far, by slot, and the segment that is being recorded."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """Bytes, by slot."""
        self.category: list[int] = []
        """Indices into `CATEGORIES`."""
        self.place: list[int] = []
        """Indices into `PLACES`."""
        self.module: list[int] = []
        """Numbers of modules, as `attribution` has them."""
        self.attribution = Attribution()
        self.backward = False
        """Whether a backward pass is running."""
        self.entered = 0
        """The slot with which the phase began."""
        self._segment = StepEvents()
        self._first = 0  # slot with which the segment began
        self._sum: tuple[int, int, int] | None = None  # operand's slot, sum's slot, index of the sum's event
        self._copies: set[int] = set()  # slots that autograd made to copy a gradient into
        # Nodes of the newest slot but one, and of the newest.
        self._makers: tuple[int | None, int | None] = None, None

    @property
    def position(self) -> int:
        """How many events the segment has that is being recorded."""
        return len(self._segment.events)

    def begin(self) -> StepEvents:
        """Begin a segment and return it, to be filled."""
        self._segment = StepEvents()
        self._first = len(self.sizes)
        self.attribution.forget()
        return self._segment

    def mark(self, phase: Phase) -> None:
        """Say that a phase begins."""
        self.backward = phase == "backward"
        self._segment.marks.append((len(self._segment.events), phase))
        self.entered = len(self.sizes)

    def allocate(self, size: int, place: int) -> int:
        """Record an allocation of so many bytes by the module that is at work, and return its slot."""
        slot = len(self.sizes)
        self._sum = None
        module = self.attribution.running
        maker = None
        if self.backward:
            node = torch._C._current_autograd_node()
            if node is not None:
                maker = node._sequence_nr()
                if node.name() == _ACCUMULATE:
                    self._copies.add(slot)
                elif not module:
                    module = self.attribution.made_by(node)
        self._makers = self._makers[1], maker
        self.sizes.append(size)
        self.category.append(TEMPORARY)
        self.place.append(place)
        self.module.append(module)
        self._segment.events.append(slot)
        return slot

    def release(self, slot: int) -> None:
        """Record the release of a slot."""
        self._segment.events.append(~slot)

    def release_or_fold(self, slot: int) -> bool:
        """Record the release of a slot; if it is the operand of a sum made in place, take the sum's own slot back.

        Tell whether that was so: the sum, which is the newest allocation, lives on in this slot then.
        """
        if self._sum is None or slot != self._sum[0]:
            self.release(slot)
            return False
        _, made, position = self._sum
        self._sum = None
        self._makers = None, self._makers[0]
        del self._segment.events[position]
        for values in (self.sizes, self.category, self.place, self.module):
            values.pop()
        self._copies.discard(made)
        return True

    @property
    def newest_share_a_node(self) -> bool:
        """Whether one node of autograd made the two newest slots."""
        before, newest = self._makers
        return newest is not None and before == newest

    def may_be_in_place(self, held: int, slot: int) -> None:
        """Say that the newest slot is a sum which is made in the memory of `held`, if that is what is released next."""
        if slot == len(self.sizes) - 1 and self.sizes[held] == self.sizes[slot]:
            self._sum = held, slot, len(self._segment.events) - 1

    def add_workspace(self, sizes: Iterable[int]) -> None:
        """Record what a kernel allocates inside, all at one time, and gives back before it returns."""
        slots = [self.allocate(size, DEVICE) for size in sizes if size]
        for slot in slots:
            self.category[slot] = WORKSPACE
            self.release(slot)

    def copy(self, slot: int, module: int | None) -> int:
        """Return a new slot of an allocation that was not recorded: as another, but for its module."""
        copy = len(self.sizes)
        for values in (self.sizes, self.category, self.place, self.module):
            values.append(values[slot])
        if module is not None:
            self.module[copy] = module
        return copy

    def gradient_arrived(self, slot: int, number: int, owner: int) -> None:
        """Say that a slot is the gradient of parameter `number`, of module `owner`; not if it was there before."""
        if slot < self._first or self.place[slot] == DISK:
            return  # added to one that was there: a bucket, say
        self.category[slot] = GRADIENT
        self.module[slot] = owner
        self._segment.accumulated.append(Accumulated(self.position, number, slot, slot in self._copies))
