"""Trace few of a model's blocks instead of all, where the others do the same; `autotune.timeline.depth` puts them back.

The model is whole: all parameters are there, and the optimizer updates all of them. Only the passes of a micro-step run
through fewer blocks, which are taken out of the list that the model goes through, and come back after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from autotune.candidate import Candidate
from autotune.outcome import Phase
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.depth import Deepened, LeftOutBlocks, NotAlike, Shortened, Span, deepen, repeat
from autotune.timeline.step_events import StepEvents
from autotune.worker.blocks import find_blocks
from autotune.worker.measuring.memory_breakdown import local
from autotune.worker.tracing.block_borders import BlockPasses, Borders
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.training import Training

GROWS_BESIDE = "what is made beside blocks grows with their number"
"""Why few blocks do not stand for all where no block differs."""
LONGEST_PERIOD = 8
"""Blocks after which a model's may repeat: three or five with a sliding window and one without, say."""
LEADING = 3
"""Periods in front of a gap: the first has nothing before it, the second is the template, the third its twin."""
LAG = 2
"""How many blocks later the device lets go of what left for the host, where a block keeps little but its input: as many
storages are on their way (`activation_offload.IN_FLIGHT`, and the one behind them). Where it keeps more, the next
block's take their places."""
_PLACE = ("layer_idx", "layer_id", "layer_number", "block_idx", "index")
"""What modules call their own number in the model, which changes no shape."""


def reason_for_all_blocks(candidate: Candidate, on_cuda: bool) -> str:
    """Return what of a candidate asks for a trace of all blocks, because it looks at all of them; empty for nothing.

    `on_cuda` says whether it is meant for a GPU, where gradients are not kept in files that are used in place.
    """
    looks_at_all = {
        "a whole model on each rank": candidate.sharding in {"ddp", "zero1"},
        "an engine of its own": candidate.engine != "torch",
        "files in the place of gradients": candidate.offload in {"gradients", "full"} and not on_cuda,
        "an optimizer in backward": candidate.optimizer_in_backward,
    }
    return ", ".join(name for name, holds in looks_at_all.items() if holds)


class Shortening:
    """A model whose micro-steps are traced over the first and last of its blocks."""

    def __init__(
        self, training: Training, parent: nn.Module, shortened: Shortened, longer: Shortened
    ) -> None:
        """Take the list that holds the blocks, and two choices of those that run.

        Steps of both must come to the same: then nothing beside the blocks depends on how many there are.
        """
        model = training.model
        self._host_gradients = training.host_gradients
        self._shortened = shortened
        self._longer = longer
        self._parent = parent
        self._blocks = list(parent.children())
        self._parameters = list(model.parameters())

    @classmethod
    def of(cls, training: Training, request: ProbeRequest) -> Shortening | None:
        """Return how a training's micro-steps can be traced in short; None where that would save nothing."""
        model = training.model
        blocks = find_blocks(model, request.model.block_class)
        if blocks is None:
            return None
        parent = next(
            (
                module for module in model.modules()
                if isinstance(module, nn.ModuleList | nn.Sequential) and tuple(module.children()) == blocks.modules
            ),
            None,
        )  # fmt: skip
        if parent is None:
            return None
        numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
        parameters = tuple(
            tuple(numbers[id(parameter)] for parameter in block.parameters()) for block in blocks.modules
        )
        owned = [number for own in parameters for number in own]
        signatures = [_signature(block) for block in blocks.modules]
        leading = LEADING + hasattr(blocks.modules[0], "unshard")  # FSDP2's gather the one before them
        candidate = request.candidate
        copied = candidate.activation_offload or candidate.checkpointing == "offloaded"
        lag = 0
        if copied and training.device.type != "cpu":  # whose files are used in place
            lag = 1 if candidate.checkpointing == "none" else LAG
        if lag and candidate.attention == "eager":
            leading += 1  # the mask, which all blocks save, leaves beside the first's input
        short = _shortened(signatures, parameters, leading + lag, lag)
        if not short.cuts or len(set(owned)) < len(owned):  # blocks that share parameters are not apart
            return None
        return cls(training, parent, short, _shortened(signatures, parameters, leading + lag + 1, lag))

    @property
    def longest(self) -> frozenset[int]:
        """The numbers of all blocks that its passes ever run through."""
        return frozenset((*self._shortened.kept, *self._longer.kept))

    def described(self) -> str:
        """Return how many blocks the passes run through, and how many there are."""
        return f"{len(self._shortened.kept)} of {len(self._blocks)}"

    @contextmanager
    def recorded(self, recorder: StorageRecorder, longer: bool) -> Iterator[Borders]:
        """Run the model through its kept blocks alone while open, and note where their passes begin and end.

        `longer` keeps more of them.
        """
        children = dict(self._parent._modules)
        names = list(children)
        kept = self._choice(longer).kept
        self._parent._modules = {names[number]: children[names[number]] for number in kept}
        try:
            with Borders(recorder, [self._blocks[number] for number in kept]).noted() as borders:
                yield borders
        finally:
            self._parent._modules = children

    def _choice(self, longer: bool) -> Shortened:
        return self._longer if longer else self._shortened

    def restored(
        self,
        segment: StepEvents,
        borders: Borders,
        recorder: StorageRecorder,
        longer: bool,
        stand_in: bool = True,
    ) -> tuple[StepEvents, BlockPasses]:
        """Return the micro-step of the whole model, and give the parameters of all blocks their gradients.

        Not so with `stand_in` false, where no optimizer follows that would need them. With the micro-step comes where
        all blocks lie. Raises NotAlike.
        """
        shortened = self._choice(longer)
        allocations = recorder.allocations
        number_of = allocations.attribution.number
        modules = [[number_of(module) for module in block.modules()] for block in self._blocks]
        owner = [{module: order for order, module in enumerate(own)} for own in modules]

        def copy(slot: int, position: int, number: int) -> int:
            template = shortened.kept[position]
            order = owner[template].get(allocations.module[slot])
            return allocations.copy(slot, None if order is None else modules[number][order])

        def alike(ours: int, theirs: int) -> bool:
            return all(
                values[ours] == values[theirs]
                for values in (allocations.sizes, allocations.category, allocations.place)
            )

        found = deepen(segment, borders.spans(), shortened, copy, alike)
        calls: dict[Phase, list[Span]] = {}
        for phase, spans in borders.calls().items():
            recorder.log.calls[phase], calls[phase] = repeat(recorder.log.calls[phase], spans, shortened)
        for cut in shortened.cuts if stand_in else ():
            for number in shortened.gap(cut):
                self._stand_in(recorder, shortened, number, shortened.stands_for(cut, number), found)
        return found.micro, BlockPasses(found.spans, calls)

    def _stand_in(
        self, recorder: StorageRecorder, shortened: Shortened, number: int, position: int, found: Deepened
    ) -> None:
        """Give the parameters of a block that was left out gradients like those of the one that stands for it."""
        storages: dict[int, Tensor] = {}  # by slot: gradients of one block may be views of one storage
        of = shortened.parameters

        def like(gradient: Tensor) -> Tensor:
            ours = recorder.slot_of(local(gradient))
            slot = None if ours is None else found.counterpart(ours, position, number)
            if slot is None:
                raise NotAlike("gradients of a block were made outside of blocks")
            return recorder.stand_in(gradient, slot, storages)

        for order, template in enumerate(of[shortened.kept[position]]):
            if self._host_gradients is not None:
                own, other = self._parameters[of[number][order]], self._parameters[template]
                self._host_gradients.stand_in(own, other, like)
            gradient = self._parameters[template].grad
            if gradient is None:
                continue
            self._parameters[of[number][order]].grad = like(gradient)


def _shortened(
    signatures: list[Hashable], parameters: tuple[tuple[int, ...], ...], leading: int, lag: int
) -> Shortened:
    """Return which blocks to keep: of each stretch that repeats `leading` periods, the last, and what is over.

    With a `lag` as many more in front of the last.
    """
    kept: list[int] = []
    cuts: list[LeftOutBlocks] = []
    start, count = 0, len(signatures)
    while start < count:
        period, length = _repeating(signatures, start)
        trailing = period + length % period + lag if period else 0
        if period and length > leading * period + trailing:
            kept.extend(range(start, start + leading * period))
            cuts.append(LeftOutBlocks(len(kept), period))
            kept.extend(range(start + length - trailing, start + length))
        else:
            kept.extend(range(start, start + length))
        start += length
    return Shortened(tuple(kept), tuple(cuts), parameters)


def _repeating(signatures: list[Hashable], start: int) -> tuple[int, int]:
    """Return the period of the stretch that begins at a block, and how many blocks it has; (0, 1) for a single one."""
    best = (0, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        length = period
        while (
            start + length < len(signatures)
            and signatures[start + length] == signatures[start + length - period]
        ):
            length += 1
        if length >= 2 * period and length - LEADING * period > best[1] - LEADING * best[0]:
            best = (period, length)
    return best


def _signature(block: nn.Module) -> Hashable:
    """Return what a block is but for its place in the model: its modules, their shapes and plain settings."""
    return tuple(
        (
            name,
            type(module),
            tuple(
                (key, tuple(value.shape), value.dtype, value.requires_grad)
                for key, value in (
                    *module.named_parameters(recurse=False),
                    *module.named_buffers(recurse=False),
                )
            ),
            tuple(
                (key, value)
                for key, value in sorted(vars(module).items())
                if isinstance(value, bool | int | float | str) and key not in _PLACE
            ),
            _forward(vars(module).get("forward")),
        )
        for name, module in block.named_modules()
    )


def _forward(function: Callable[..., Any] | None) -> Hashable:
    """Return what was made of a module's forward: nothing, or what wraps it (a checkpoint, say)."""
    wraps = []
    while isinstance(function, partial):
        wraps.append((function.func.__qualname__, tuple(sorted(function.keywords))))
        function = next((value for value in function.args if callable(value)), None)
    return tuple(wraps)
